//! Lock name -> node name. Injective, and every node name is one that ZooKeeper takes.

use std::fmt::Write;

use dlock_core::Name;

/// The node of a lock: its name, with `%XX` for the bytes of what ZooKeeper refuses in a node name.
///
/// That is the slash; the names `.` and `..`; and every character from U+D800 on. ZooKeeper looks at UTF-16 units, so it takes
/// the halves of a character outside of the basic plane, an emoji for example, for private ones.
pub(crate) fn encode(name: &Name) -> String {
    let mut node = String::with_capacity(name.len());
    let dots = matches!(name.as_str(), "." | "..");
    for c in name.chars() {
        let plain = !matches!(c, '/' | '%') && !c.is_control() && u32::from(c) < 0xD800;
        if plain && !dots {
            node.push(c);
            continue;
        }
        let mut bytes = [0; 4];
        for byte in c.encode_utf8(&mut bytes).bytes() {
            // Writing to a string cannot fail.
            let _ = write!(node, "%{byte:02X}");
        }
    }
    node
}

/// The lock of a node; `None` for a node that is not one of ours.
pub(crate) fn decode(node: &str) -> Option<Name> {
    let mut bytes = Vec::with_capacity(node.len());
    let mut rest = node.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    let name = Name::new(String::from_utf8(bytes).ok()?).ok()?;
    // What another program made may decode without being ours: `%41` is never written for `A`.
    (encode(&name) == node).then_some(name)
}

/// Whether ZooKeeper takes this as an absolute path.
pub(crate) fn is_path(path: &str) -> bool {
    let Some(parts) = path.strip_prefix('/') else {
        return false;
    };
    parts.split('/').all(|part| {
        !part.is_empty()
            && !matches!(part, "." | "..")
            && part
                .chars()
                .all(|c| !c.is_control() && u32::from(c) < 0xD800)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(name: &str) -> String {
        encode(&Name::new(name).expect(name))
    }

    #[test]
    fn what_zookeeper_refuses_is_encoded_and_the_rest_is_readable() {
        for (name, expected) in [
            ("stock:42", "stock:42"),
            ("a/b", "a%2Fb"),
            ("%2F", "%252F"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            ("a.b", "a.b"),
            (" é ", " é "),
            ("🔒", "%F0%9F%94%92"),
            ("\u{e000}", "%EE%80%80"),
        ] {
            assert_eq!(node(name), expected);
            assert_eq!(decode(expected).expect(expected).as_str(), name);
        }
    }

    #[test]
    fn nodes_of_others_are_not_names() {
        for foreign in ["%41", "%2f", "%2", "%", "%FF", "a/b", "."] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn paths_are_checked() {
        for good in ["/a", "/a/b c/é"] {
            assert!(is_path(good), "{good}");
        }
        for bad in ["", "a", "/", "/a/", "//a", "/a/../b", "/.", "/a\n", "/🔒"] {
            assert!(!is_path(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in "\\PC{1,60}") {
            if let Ok(name) = Name::new(&name) {
                let node = encode(&name);
                let path = format!("/{node}");
                prop_assert!(is_path(&path));
                prop_assert_eq!(decode(&node), Some(name));
            }
        }
    }
}

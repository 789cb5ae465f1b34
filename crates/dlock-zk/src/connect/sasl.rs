//! SASL with DIGEST-MD5 (RFC 2831): the server asks, and each side shows that it knows the password without telling it.

use md5::{Digest, Md5};

use super::Cause;

/// What ZooKeeper's servers call themselves.
pub(super) const ZOOKEEPER: &str = "zookeeper/zk-sasl-md5";

/// The answer to a server's question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DigestAnswer {
    pub(super) text: String,
    /// What the server has to say to it.
    proof: String,
}

impl DigestAnswer {
    /// `nonce` is a word of our own, which nobody has used before.
    pub(super) fn new(
        question: &[u8],
        (user, password): (&str, &str),
        service: &str,
        nonce: &str,
    ) -> Result<Self, Cause> {
        let question = std::str::from_utf8(question).map_err(|_| Cause::Garbled)?;
        let theirs = value_of(question, "nonce").ok_or(Cause::Garbled)?;
        let realm = value_of(question, "realm").unwrap_or_default();
        let who = [latin(user), latin(&realm), latin(password)].join(&b':');
        let mut secret = Md5::digest(&who).to_vec();
        secret.extend_from_slice(format!(":{theirs}:{nonce}").as_bytes());
        let secret = hex(&secret);
        let digest = |of: &str| {
            let of = hex(of.as_bytes());
            hex(format!("{secret}:{theirs}:00000001:{nonce}:auth:{of}").as_bytes())
        };
        let (response, proof) = (
            digest(&format!("AUTHENTICATE:{service}")),
            digest(&format!(":{service}")),
        );
        Ok(Self {
            text: format!(
                "charset=utf-8,username={},realm={},nonce={},nc=00000001,cnonce={},digest-uri={},response={response},qop=auth",
                quoted(user),
                quoted(&realm),
                quoted(&theirs),
                quoted(nonce),
                quoted(service),
            ),
            proof,
        })
    }

    /// Whether the server's last word shows that it knows the password, too.
    pub(super) fn is_proven_by(&self, last: &[u8]) -> bool {
        let last = std::str::from_utf8(last).unwrap_or_default();
        value_of(last, "rspauth").is_some_and(|proof| proof == self.proof)
    }
}

fn hex(text: &[u8]) -> String {
    let digest = Md5::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In Latin-1 where that is possible, as the standard has it for what is hashed.
fn latin(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text
        .chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The value of `key` in a list like `key="value",other=value`.
fn value_of(list: &str, key: &str) -> Option<String> {
    let mut rest = list;
    loop {
        let (name, after) = rest.split_once('=')?;
        let mut value = String::new();
        let mut chars = after.chars();
        let mut in_quotes = false;
        loop {
            match chars.next() {
                None => break,
                Some(',') if !in_quotes => break,
                Some('"') => in_quotes = !in_quotes,
                Some('\\') if in_quotes => value.extend(chars.next()),
                Some(c) => value.push(c),
            }
        }
        if name.trim() == key {
            return Some(value);
        }
        rest = chars.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_the_standard_comes_out() {
        let question = br#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8"#;
        let service = "imap/elwood.innosoft.com";
        let answer = DigestAnswer::new(question, ("chris", "secret"), service, "OA6MHXh6VqTrRk");
        let answer = answer.expect("a good question");
        assert!(
            answer
                .text
                .contains("response=d388dad90d4bbd760a152321f2143af7"),
            "{answer:?}"
        );
        assert!(!answer.text.contains("secret"));
        assert!(answer.is_proven_by(b"rspauth=ea40f60335c427b5527b84dbabcdfffd"));
        assert!(!answer.is_proven_by(b"rspauth=00000000000000000000000000000000"));
        assert!(!answer.is_proven_by(b""));
    }

    #[test]
    fn lists_are_read_with_their_quotes() {
        let list = r#"a="x,y=1", b=z,c="\"q\"""#;
        assert_eq!(value_of(list, "a").as_deref(), Some("x,y=1"));
        assert_eq!(value_of(list, "b").as_deref(), Some("z"));
        assert_eq!(value_of(list, "c").as_deref(), Some("\"q\""));
        assert_eq!(value_of(list, "d"), None);
        assert_eq!(
            DigestAnswer::new(b"realm=x", ("u", "p"), "s", "n"),
            Err(Cause::Garbled)
        );
    }
}

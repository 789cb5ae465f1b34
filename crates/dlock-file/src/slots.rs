//! How a lock's file is changed in one step, whenever its writer is killed: two slots in turn, each with a number and a checksum.
//!
//! Renaming a new file over the old one would do the same, but costs a flush to the disk on ext4, a hundred times the write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::key::fnv;

/// Where the second slot begins. The hole in between takes no room.
const SLOT: u64 = 4 << 20;
const HEADER: usize = 24;
/// Most texts are shorter, and need one read for each slot.
const FIRST_READ: usize = 2048;

/// The newest text, and its number; number 0 and nothing when no slot was ever written whole.
pub(crate) fn read(file: &File) -> io::Result<(u64, String)> {
    let mut newest = (0, String::new());
    for slot in [0, SLOT] {
        if let Some((number, text)) = read_slot(file, slot)?
            && number > newest.0
        {
            newest = (number, text);
        }
    }
    Ok(newest)
}

/// Writes the text after `number` into the older slot.
pub(crate) fn write(file: &File, number: u64, text: &str) -> io::Result<()> {
    let number = number + 1;
    let length = text.len() as u64;
    if length + HEADER as u64 > SLOT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "too many holders and waiters for one lock",
        ));
    }
    let mut bytes = Vec::with_capacity(HEADER + text.len());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&checksum(number, text.as_bytes()).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    file.write_all_at(&bytes, (number % 2) * SLOT)
}

fn read_slot(file: &File, at: u64) -> io::Result<Option<(u64, String)>> {
    let mut bytes = vec![0; FIRST_READ];
    let got = read_up_to(file, &mut bytes, at)?;
    let field = |index: usize| -> Option<u64> {
        let bytes = bytes.get(index * 8..index * 8 + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let (Some(number), Some(length), Some(sum)) = (field(0), field(1), field(2)) else {
        return Ok(None);
    };
    if got < HEADER || number == 0 || length > SLOT {
        return Ok(None);
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    bytes.truncate(got);
    if got < HEADER + length {
        bytes.resize(HEADER + length, 0);
        let more = bytes.get_mut(got..).unwrap_or_default();
        if read_up_to(file, more, at + got as u64)? < HEADER + length - got {
            return Ok(None);
        }
    }
    let text = bytes.get(HEADER..HEADER + length).unwrap_or_default();
    if checksum(number, text) != sum {
        // Its writer was killed, or is just writing: the other slot is the one that counts.
        return Ok(None);
    }
    Ok(Some((number, String::from_utf8_lossy(text).into_owned())))
}

fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn checksum(number: u64, text: &[u8]) -> u64 {
    fnv(text) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_text_counts() {
        let file = tempfile::tempfile().expect("temp");
        assert_eq!(read(&file).expect("read"), (0, String::new()));
        for number in 0..5 {
            let text = format!("text {number}").repeat(number as usize * 300 + 1);
            write(&file, number, &text).expect("written");
            assert_eq!(read(&file).expect("read"), (number + 1, text));
        }
    }

    #[test]
    fn a_write_that_was_cut_short_leaves_the_text_before() {
        let file = tempfile::tempfile().expect("temp");
        write(&file, 0, "before").expect("written");
        let whole = tempfile::tempfile().expect("temp");
        write(&whole, 1, "after").expect("written");
        let mut bytes = vec![0; HEADER + 5];
        let at = 0; // where number 2 goes
        whole.read_exact_at(&mut bytes, at).expect("read");
        for length in 0..bytes.len() {
            file.write_all_at(&bytes[..length], at).expect("written");
            assert_eq!(read(&file).expect("read").1, "before", "{length} bytes");
        }
        file.write_all_at(&bytes, at).expect("written");
        assert_eq!(read(&file).expect("read").1, "after");
    }
}

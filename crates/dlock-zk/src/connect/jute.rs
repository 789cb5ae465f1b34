//! How ZooKeeper writes things down: numbers in network order, and everything else behind its length.

use super::Cause;

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn bool(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    pub(super) fn bytes(self, value: &[u8]) -> Self {
        // What is longer than 2 GiB is refused by every server long before.
        let mut this = self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        this.0.extend_from_slice(value);
        this
    }

    pub(super) fn text(self, value: &str) -> Self {
        self.bytes(value.as_bytes())
    }

    /// What was written elsewhere.
    pub(super) fn then(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    pub(super) fn texts<'a>(self, values: impl ExactSizeIterator<Item = &'a str>) -> Self {
        let this = self.int(i32::try_from(values.len()).unwrap_or(i32::MAX));
        values.fold(this, Self::text)
    }
}

/// A message that is being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Cause> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Cause::Garbled)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Cause> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Cause::Garbled)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn int(&mut self) -> Result<i32, Cause> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<i64, Cause> {
        self.array().map(i64::from_be_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Cause> {
        self.array().map(|[byte]| byte != 0)
    }

    /// Nothing is written with a length of -1, and read as no bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Cause> {
        match self.int()? {
            -1 => Ok(&[]),
            length => self.take(usize::try_from(length).map_err(|_| Cause::Garbled)?),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Cause> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Cause::Garbled)
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, Cause> {
        let count = self.int()?.max(0);
        (0..count).map(|_| self.text().map(str::to_owned)).collect()
    }
}

/// The longest message that is waited for. A queue of a million places is shorter; what says more does not speak as ZooKeeper does, and would fill
/// our memory.
const LONGEST: usize = 64 * 1024 * 1024;

/// Takes the first whole frame off a stream of them: its bytes without the length, and the length of both.
pub(super) fn frame(stream: &[u8]) -> Result<Option<(&[u8], usize)>, Cause> {
    let Some((length, rest)) = stream.split_first_chunk() else {
        return Ok(None);
    };
    let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| Cause::Garbled)?;
    if length > LONGEST {
        return Err(Cause::Garbled);
    }
    Ok(rest.get(..length).map(|body| (body, 4 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let written = Writer::default()
            .int(-7)
            .long(i64::MIN)
            .bool(true)
            .text("é")
            .bytes(b"")
            .texts(["a", "bc"].into_iter())
            .int(-1);
        let mut reader = Reader(&written.0);
        assert_eq!(reader.int(), Ok(-7));
        assert_eq!(reader.long(), Ok(i64::MIN));
        assert_eq!(reader.bool(), Ok(true));
        assert_eq!(reader.text(), Ok("é"));
        assert_eq!(reader.bytes(), Ok(&b""[..]));
        assert_eq!(reader.texts(), Ok(vec!["a".to_owned(), "bc".to_owned()]));
        assert_eq!(reader.bytes(), Ok(&b""[..]), "nothing at all");
        assert_eq!(reader.int(), Err(Cause::Garbled), "the end");
    }

    #[test]
    fn frames_are_taken_whole() {
        let stream = Writer::default().text("one").text("two").0;
        assert_eq!(frame(&stream[..3]), Ok(None));
        assert_eq!(frame(&stream[..6]), Ok(None));
        assert_eq!(frame(&stream), Ok(Some((&b"one"[..], 7))));
        assert_eq!(frame(&[0xff; 4]), Err(Cause::Garbled));
        assert_eq!(frame(b"HTTP/1.1 400"), Err(Cause::Garbled));
    }

    #[test]
    fn lengths_that_lie_are_noticed() {
        let lie = Writer::default().int(1_000_000).0;
        assert_eq!(Reader(&lie).bytes(), Err(Cause::Garbled));
        assert_eq!(Reader(&lie).texts(), Err(Cause::Garbled));
    }
}

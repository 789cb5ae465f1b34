//! Where tokens come from: one counter for all names, which leaves nothing behind.

/// How many tasks of a client may have a hold in turn, each with a token of its own.
pub(crate) const TURNS: u32 = 64;

/// Higher than every token before. As many as a hold has turns are set aside with it.
pub(crate) fn next_token(last: &mut u64) -> u64 {
    let token = *last + 1;
    *last += u64::from(TURNS);
    token
}

//! Forty mistakes that the author of a backend might make, written down from docs/contract.md, docs/write-a-backend.md and the
//! documentation of the `Backend` trait alone: before the suite's cases and the mistakes that are planted elsewhere in these tests
//! were looked at, and before one of them was tried. So what the suite finds of them at first is a blind figure.

/// A mistake, and what the backend does because of it.
pub(crate) const LIST: [(&str, &str); 40] = [
    // One attempt, and what a waiter does.
    (
        "OwnerIsTheLabel",
        "the owner in the store is the label (host and process), so a second acquire of the same program is taken for a repeated one and gets in",
    ),
    (
        "RepeatIsBusy",
        "an attempt that is asked twice finds its own hold, and answers that others have it",
    ),
    (
        "RepeatDrawsNewToken",
        "an attempt that is asked twice keeps its hold, and draws another token for it",
    ),
    (
        "ExpiryInWholeSeconds",
        "the end of a hold is kept in whole seconds, rounded down: it can be taken up to a second before its lease is over",
    ),
    (
        "LeaseNeverUnderAMinute",
        "no hold is kept for less than a minute, whatever lease was asked for: what a dead holder leaves stays that long",
    ),
    (
        "TakeOverPassesTheQueue",
        "a hold whose lease is over goes to whoever asks next, though others have waited longer",
    ),
    (
        "TryLeavesAPlace",
        "an attempt that does not wait enters the queue as well, and stays there when it is answered that others hold the lock",
    ),
    (
        "TryWaitsForTheRow",
        "an attempt that shall not wait waits for the holder for up to two seconds, as a row lock of a database does",
    ),
    (
        "PlaceByLastQuestion",
        "each time that a waiter asks again it goes to the end of the queue",
    ),
    (
        "NotContended",
        "a waiter never notes that the store has answered, so that its time limit reads as a store that did not answer",
    ),
    (
        "GrantCountedFromWakeUp",
        "the store gives the hold to the next waiter when it is released, and the waiter counts the lease from when the word reached it, half a second later",
    ),
    (
        "SubscribesTooLate",
        "a waiter asks, and listens for releases only some time after the answer: a release in between does not wake it for ten seconds",
    ),
    // Names and labels.
    (
        "QueueKeyCollides",
        "the queue of a lock lies under its name with `:queue` added, where the lock of that name lies too",
    ),
    (
        "NameCutAt191",
        "the column of the name takes 191 characters, and what is longer is cut",
    ),
    (
        "NameHashedTo32Bits",
        "a lock is found by a hash of 32 bits of its name",
    ),
    (
        "LabelSpliced",
        "a label with a single quote in it ends the statement: an error of the store",
    ),
    // Readers, permits, downgrades.
    (
        "OneEndForAllReaders",
        "the readers of a lock have one end together, and each renewal of one of them keeps the dead ones alive",
    ),
    (
        "LastReaderSetsTheEnd",
        "the readers of a lock have one end together, and one who comes with a shorter lease ends the others' sooner",
    ),
    (
        "DeadPermitsCount",
        "permits whose lease is over count until they are released",
    ),
    (
        "RepeatTakesSecondPermit",
        "an attempt that is asked twice takes a second permit, which nothing gives back",
    ),
    (
        "DowngradeWakesNobody",
        "readers who wait are not told that the writer has become a reader",
    ),
    (
        "FindsByMode",
        "renewals and releases look for the hold under the mode that the lease says, so that after a downgrade whose answer was lost they find nothing",
    ),
    (
        "DowngradeRevives",
        "a downgrade does not look at the end of the hold, and makes one that is over a reader with a new lease",
    ),
    // Renewals.
    (
        "RenewByName",
        "a batch of renewals is gathered by name, so that of two holds of one name only the last is renewed, and both are called extended",
    ),
    (
        "RenewAddsUp",
        "a renewal adds the lease to the end instead of counting it from now: what a dead holder leaves stays for many leases",
    ),
    (
        "RenewFirstDuration",
        "all holds of a batch are renewed for the lease of the first one",
    ),
    (
        "RenewRevives",
        "a renewal does not look at the end of the hold: one that is over is called extended, if nobody has taken it",
    ),
    (
        "RenewShiftsAnswers",
        "the answers for the holds that were lost are left out of a batch, the others move up, and the rest is filled with `Extended`",
    ),
    (
        "OneLostFailsAll",
        "a hold that is gone fails the statement that renews a batch, so that none of the others is renewed",
    ),
    (
        "RenewsOneByOne",
        "a batch is renewed one hold after the other, a trip for each",
    ),
    // Releases and undos.
    (
        "ReleaseErrorIsLost",
        "a release that got no answer says that the hold had been lost, so that nobody tries again",
    ),
    (
        "ReleaseGoneIsError",
        "a release that finds nothing is an error, and is tried again and again",
    ),
    (
        "AbandonFreesWithoutWord",
        "the undo of a hold frees it, and tells nobody who waits",
    ),
    (
        "TombstoneInTheRow",
        "the mark of an abandoned attempt is kept in the lock's row, and the next attempt of anybody overwrites it",
    ),
    (
        "InDoubtIsNo",
        "an error without an answer says that the lock is not held, so that nothing undoes what the store did all the same",
    ),
    (
        "AbandonUnknownIsError",
        "the undo of an attempt that has left nothing is an error, and is tried again and again",
    ),
    // Force, and tokens.
    (
        "BreakTellsNobody",
        "a lock that is broken by force is free, and no waiter is told",
    ),
    (
        "BreakLeavesReaders",
        "breaking a lock by force ends the hold of a writer alone, and not those of readers",
    ),
    (
        "TokenKeptByAttempt",
        "the token is drawn when a waiter asks for the first time, and kept for when it gets the lock",
    ),
    (
        "TurnsOverlap",
        "a grant brings several tokens in a row, and the next one begins with the second of them",
    ),
];

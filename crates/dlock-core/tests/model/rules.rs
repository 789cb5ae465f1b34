//! The rules, as core and a store follow them.

mod steps;
mod walk;

/// How long after a grant a stay may begin without the store.
const LOCAL_TIME: u8 = 2;
/// How late a message comes at most.
pub(crate) const LATE: u8 = 1;
/// How long a task stays in at most.
const STAYS: u8 = 1;
/// By then everybody must have been in.
const END: u8 = 30;

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    TokensNotSetAside,
    MoreTurnsThanTokens,
    ResumesWhatIsGivenBack,
    ResumesWithoutAClock,
    RestsThoughWanted,
    RestsForEver,
    ReleasesWhateverIsHeld,
    ValidFromTheAnswer,
    PassesOnForEver,
    NeverListens,
    EveryRestAnew,
    JoinsForEver,
    KeepsTheLongestHoldOfTheOneBefore,
    LeavesWithTheFirstGuard,
}

/// A world in which the rules are followed.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    defect: Option<Defect>,
    losses: u8,
    deaths: u8,
    /// Ticks of the store's lease; a client counts them from the sending.
    lease: u8,
    /// How many renewals are sent.
    renewals: u8,
    /// Tokens of a grant.
    turns: u8,
    /// How often the tasks of each client ask, and by when they have.
    asks: [u8; 2],
    asked_by: u8,
    /// The longest stay, which is longer than a task wants to stay.
    max_hold: u8,
    /// How often an owner enters again what it holds.
    reentries: u8,
    /// How long a hold rests; not at all where it is nothing.
    linger: u8,
    /// The store tells a holder that listens that others wait.
    tells: bool,
    /// The tasks of the first client want to read, and join a hold that their client has.
    reads: bool,
    /// How long the second client waits at the store at most.
    longest_wait: u8,
}

type ClientId = usize;
/// A grant is known by its first token.
type Token = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    now: u8,
    holder: Option<Holder>,
    queue: Vec<ClientId>,
    last_token: Token,
    clients: [Client; 2],
    wire: Vec<(Message, u8)>,
    losses: u8,
    deaths: u8,
    renewals: u8,
    reentries: u8,
    /// Since when a client waits at the store, and whether that was too long once.
    waits_since: Option<u8>,
    waited_too_long: bool,
    /// Until when a guard is good whose hold went on without it.
    left_behind: u8,
    /// The highest token that a guard has had.
    seen: Token,
    /// A guard got a token that is not above all before it, or began when its time had passed.
    token_fell: bool,
    began_late: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Holder {
    client: ClientId,
    grant: Token,
    until: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Client {
    alive: bool,
    /// How often its tasks will still ask.
    asks: u8,
    /// Tasks in the local line.
    line: u8,
    hold: Hold,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hold {
    Nothing,
    Asking { sent: u8 },
    Held(Stay),
    Resting { stay: Stay, ends: u8 },
    GivingBack { stay: Stay },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Stay {
    grant: Token,
    turn: u8,
    /// When the store's answer came.
    granted: u8,
    /// When the task got in, how often, and when its stay must end.
    began: u8,
    guards: u8,
    ends: u8,
    valid_until: u8,
    wanted: bool,
    /// A room listens for others, from the first rest on.
    listens: bool,
    /// From when the time to linger counts.
    rests_since: Option<u8>,
}

impl Stay {
    fn is_good(&self, now: u8) -> bool {
        now < self.valid_until && now < self.ends
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    Acquire {
        client: ClientId,
        sent: u8,
    },
    Granted {
        client: ClientId,
        grant: Token,
        sent: u8,
    },
    Renew {
        client: ClientId,
        grant: Token,
        sent: u8,
    },
    Renewed {
        client: ClientId,
        grant: Token,
        sent: u8,
    },
    Release {
        client: ClientId,
        grant: Token,
    },
    Released {
        client: ClientId,
        grant: Token,
    },
    Listen {
        client: ClientId,
        grant: Token,
    },
    Wanted {
        client: ClientId,
        grant: Token,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Tick,
    Ask(ClientId),
    Send(ClientId),
    Leave(ClientId),
    Reenter(ClientId),
    EndRest(ClientId),
    Renew(ClientId),
    Deliver(usize),
    Lose(usize),
    Die(ClientId),
}

impl Rules {
    /// Short leases, and a world that is not kind: nobody can say how long a client waits.
    pub(crate) fn unkind(losses: u8, deaths: u8) -> Self {
        Self {
            defect: None,
            losses,
            deaths,
            lease: 2,
            renewals: 1,
            turns: 2,
            asks: [3, 1],
            asked_by: 2,
            max_hold: u8::MAX,
            reentries: 0,
            linger: 3,
            tells: true,
            reads: false,
            longest_wait: u8::MAX,
        }
    }

    /// A lease that ends nothing, so that the rules alone end it: how long the other client waits follows from them. Here nothing
    /// rests: a grant that is late by a tick, the local time, the last stay in it, and a release that is late.
    pub(crate) fn turns() -> Self {
        Self {
            lease: 30,
            renewals: 0,
            turns: 4,
            asks: [4, 1],
            asked_by: 5,
            linger: 0,
            longest_wait: LATE + LOCAL_TIME - 1 + STAYS + LATE,
            ..Self::unkind(0, 0)
        }
    }

    /// As before, with rests, of a store that tells: what was passed on rests, listens, is told and is given back, or the stay ends
    /// that began meanwhile.
    pub(crate) fn told() -> Self {
        let turns = Self::turns();
        Self {
            linger: 8,
            longest_wait: turns.longest_wait + LATE + LATE + STAYS,
            ..turns
        }
    }

    /// As before, of a store that never tells: a first stay, the time to linger, and the stay that runs when it ends.
    pub(crate) fn never_told() -> Self {
        let linger = 3;
        Self {
            linger,
            tells: false,
            longest_wait: LATE + STAYS + linger + STAYS + LATE,
            ..Self::turns()
        }
    }

    /// An owner enters again what it holds.
    pub(crate) fn reentry() -> Self {
        Self {
            turns: 2,
            asks: [2, 1],
            asked_by: 4,
            max_hold: 2,
            reentries: 1,
            linger: 3,
            longest_wait: u8::MAX,
            ..Self::turns()
        }
    }

    /// The tasks of the first client read, and join.
    pub(crate) fn readers() -> Self {
        Self {
            reads: true,
            ..Self::turns()
        }
    }

    /// The same world, with a rule that is broken.
    pub(crate) fn but(&self, defect: Defect) -> Self {
        Self {
            defect: Some(defect),
            ..self.clone()
        }
    }
}

//! The rules, as core and a store follow them.

use stateright::{Model, Property};

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

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Whether a stay may begin in a hold.
    fn has_another(&self, stay: &Stay) -> bool {
        let more = u8::from(self.has(Defect::MoreTurnsThanTokens));
        stay.turn + 1 < self.turns + more
    }

    /// Whether a hold may still go on from task to task.
    fn is_in_local_time(&self, stay: &Stay, now: u8) -> bool {
        now < stay.granted + LOCAL_TIME
    }

    /// A task has a guard from now on.
    fn begins(&self, state: &mut State, client: ClientId, mut stay: Stay) {
        stay.began = state.now;
        stay.guards = 1;
        if stay.turn == 0 || !self.has(Defect::KeepsTheLongestHoldOfTheOneBefore) {
            stay.ends = state.now.saturating_add(self.max_hold);
        }
        state.clients[client].hold = Hold::Held(stay);
        let token = stay.grant + stay.turn;
        state.token_fell |= token <= state.seen;
        state.began_late |= !stay.is_good(state.now);
        state.seen = state.seen.max(token);
    }

    fn leave(&self, state: &mut State, client: ClientId) {
        let now = state.now;
        let Hold::Held(stay) = state.clients[client].hold.clone() else {
            return;
        };
        if stay.guards > 1 {
            let left = Stay {
                guards: stay.guards - 1,
                ..stay
            };
            if !self.has(Defect::LeavesWithTheFirstGuard) {
                state.clients[client].hold = Hold::Held(left);
                return;
            }
            state.left_behind = stay.valid_until.min(stay.ends);
        }
        if !self.reads && stay.is_good(now) && self.has_another(&stay) {
            let next = Stay {
                turn: stay.turn + 1,
                ..stay
            };
            let has_time = self.is_in_local_time(&stay, now) || self.has(Defect::PassesOnForEver);
            // Whether others wait is not asked: it may not be known, and the bounds are the same.
            if state.clients[client].line > 0 && has_time {
                state.clients[client].line -= 1;
                self.begins(state, client, next);
                return;
            }
            if self.rests(state, client, next) {
                return;
            }
        }
        self.give_back(state, client, stay);
    }

    /// Lets a hold rest that its last task has left, if it may.
    fn rests(&self, state: &mut State, client: ClientId, mut stay: Stay) -> bool {
        // Where the store never tells, all rests of a grant are one.
        let since = match self.tells || self.has(Defect::EveryRestAnew) {
            true => state.now,
            false => stay.rests_since.unwrap_or(state.now),
        };
        let ends = since + self.linger;
        let may = !stay.wanted || self.has(Defect::RestsThoughWanted);
        if state.clients[client].line > 0 || !may || state.now >= ends {
            return false;
        }
        if !self.tells {
            stay.rests_since = Some(since);
        }
        if self.tells && !stay.listens && !self.has(Defect::NeverListens) {
            stay.listens = true;
            let grant = stay.grant;
            state.send(Message::Listen { client, grant });
        }
        if !self.has(Defect::KeepsTheLongestHoldOfTheOneBefore) {
            stay.ends = u8::MAX;
        }
        state.clients[client].hold = Hold::Resting { stay, ends };
        true
    }

    fn give_back(&self, state: &mut State, client: ClientId, stay: Stay) {
        state.clients[client].hold = Hold::GivingBack { stay };
        let grant = stay.grant;
        state.send(Message::Release { client, grant });
    }

    /// A task asks: it has what rests, or stands in the line.
    fn ask(&self, state: &mut State, client: ClientId) {
        let now = state.now;
        let it = &mut state.clients[client];
        it.asks -= 1;
        if let Hold::Held(stay) = &mut it.hold
            && self.reads
            && client == 0
            && it.line == 0
            && stay.is_good(now)
            && (now < stay.granted + LOCAL_TIME || self.has(Defect::JoinsForEver))
        {
            stay.guards += 1;
            // The last of them leaves when it has stayed for its time.
            stay.began = now;
            stay.ends = u8::MAX;
            return;
        }
        let resumes = match it.hold {
            Hold::Resting { stay, ends } => {
                let in_time = now < stay.valid_until || self.has(Defect::ResumesWithoutAClock);
                (in_time && now < ends && !stay.wanted).then_some(stay)
            }
            Hold::GivingBack { stay } if self.has(Defect::ResumesWhatIsGivenBack) => Some(Stay {
                turn: stay.turn + 1,
                ..stay
            }),
            _ => None,
        };
        match resumes {
            Some(stay) => self.begins(state, client, stay),
            None => {
                it.line += 1;
                if let Hold::Resting { stay, .. } = it.hold {
                    self.give_back(state, client, stay);
                }
            }
        }
    }

    /// The store grants the lock to the next, and tells it who waits behind it.
    fn settle(&self, state: &mut State) {
        let is_over = |holder: &Holder| {
            // What rests is renewed: it is for the rule alone to end it.
            let rests = matches!(state.clients[holder.client].hold, Hold::Resting { .. });
            holder.until <= state.now && !(rests && self.has(Defect::RestsForEver))
        };
        if state.holder.as_ref().is_some_and(is_over) {
            state.holder = None;
        }
        if state.holder.is_some() || state.queue.is_empty() {
            return;
        }
        let client = state.queue.remove(0);
        state.waits_since = None;
        let step = if self.has(Defect::TokensNotSetAside) {
            1
        } else {
            self.turns
        };
        let grant = state.last_token + 1;
        state.last_token += step;
        let until = state.now + self.lease;
        state.holder = Some(Holder {
            client,
            grant,
            until,
        });
        // The lease counts from the grant, which the message carries.
        let sent = state.now;
        state.send(Message::Granted {
            client,
            grant,
            sent,
        });
        if !state.queue.is_empty() {
            self.waits(state);
        }
    }

    /// A client waits at the store from now on.
    fn waits(&self, state: &mut State) {
        if self.longest_wait < u8::MAX {
            state.waits_since = Some(state.now);
        }
    }

    /// A holder is told that others wait, if the store tells. It hears it once it listens.
    fn tell(&self, state: &mut State, client: ClientId, grant: Token) {
        if self.tells {
            state.send(Message::Wanted { client, grant });
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let now = state.now;
        match message {
            Message::Acquire { client, .. } => {
                match &mut state.holder {
                    // Sent twice: it is one hold, with a lease that counts anew.
                    Some(holder) if holder.client == client => {
                        holder.until = now + self.lease;
                        let (grant, sent) = (holder.grant, now);
                        state.send(Message::Granted {
                            client,
                            grant,
                            sent,
                        });
                    }
                    _ if state.queue.contains(&client) => {}
                    Some(holder) => {
                        let (other, grant) = (holder.client, holder.grant);
                        state.queue.push(client);
                        self.waits(state);
                        self.tell(state, other, grant);
                    }
                    None => state.queue.push(client),
                }
                self.settle(state);
            }
            Message::Renew {
                client,
                grant,
                sent,
            } => {
                if let Some(holder) = &mut state.holder
                    && (holder.client, holder.grant) == (client, grant)
                {
                    holder.until = now + self.lease;
                    state.send(Message::Renewed {
                        client,
                        grant,
                        sent,
                    });
                }
            }
            Message::Release { client, grant } => {
                let is_its = state.holder.as_ref().is_some_and(|holder| {
                    holder.grant == grant || self.has(Defect::ReleasesWhateverIsHeld)
                });
                if is_its {
                    state.holder = None;
                }
                self.settle(state);
                state.send(Message::Released { client, grant });
            }
            Message::Granted {
                client,
                grant,
                sent,
            } => self.granted(state, client, grant, sent),
            Message::Renewed {
                client,
                grant,
                sent,
            } => {
                let from = if self.has(Defect::ValidFromTheAnswer) {
                    now + LATE
                } else {
                    sent
                };
                if let Hold::Held(stay) | Hold::Resting { stay, .. } =
                    &mut state.clients[client].hold
                    && stay.grant == grant
                    && now < stay.valid_until
                {
                    stay.valid_until = stay.valid_until.max(from + self.lease);
                }
            }
            Message::Released { client, grant } => {
                if let Hold::GivingBack { stay } = state.clients[client].hold
                    && stay.grant == grant
                {
                    state.clients[client].hold = Hold::Nothing;
                }
            }
            // Who waits already is told of at once.
            Message::Listen { client, grant } => {
                let holds = state.holder.as_ref().is_some_and(|it| it.grant == grant);
                if holds && !state.queue.is_empty() {
                    self.tell(state, client, grant);
                }
            }
            Message::Wanted { client, grant } => match &mut state.clients[client].hold {
                Hold::Held(stay) if stay.grant == grant && stay.listens => stay.wanted = true,
                Hold::Resting { stay, .. } if stay.grant == grant && stay.listens => {
                    stay.wanted = true;
                    let stay = *stay;
                    if !self.has(Defect::RestsThoughWanted) {
                        self.give_back(state, client, stay);
                    }
                }
                _ => {}
            },
        }
    }

    fn granted(&self, state: &mut State, client: ClientId, grant: Token, sent: u8) {
        let stay = Stay {
            grant,
            turn: 0,
            granted: state.now,
            began: state.now,
            guards: 1,
            ends: u8::MAX,
            valid_until: sent + self.lease,
            wanted: false,
            listens: false,
            rests_since: None,
        };
        match state.clients[client].hold {
            Hold::Asking { .. } if state.now < stay.valid_until => {
                state.clients[client].line -= 1;
                self.begins(state, client, stay);
            }
            // Too late: it is undone.
            Hold::Asking { .. } => self.give_back(state, client, stay),
            _ => {}
        }
    }

    /// What must happen before time goes on: nothing is later than it may be, and nobody sits on what has ended.
    fn is_urgent(&self, state: &State) -> bool {
        let late = state.wire.iter().any(|(_, age)| *age >= LATE);
        let sits = |client: &Client| match &client.hold {
            Hold::Held(stay) => stay.began + STAYS <= state.now,
            Hold::Resting { ends, .. } => *ends <= state.now && !self.has(Defect::RestsForEver),
            Hold::Nothing => client.line > 0,
            _ => false,
        };
        let sits = |client: &Client| sits(client) || client.asks > 0 && state.now >= self.asked_by;
        late || state
            .clients
            .iter()
            .any(|client| client.alive && sits(client))
    }
}

impl State {
    fn send(&mut self, message: Message) {
        self.wire.push((message, 0));
        self.wire.sort();
    }

    fn is_under_way(&self, of: impl Fn(&Message) -> bool) -> bool {
        self.wire.iter().any(|(message, _)| of(message))
    }

    /// What a client would send again, because it has heard nothing.
    fn to_send(&self, client: ClientId) -> Option<Message> {
        let sent = self.now;
        let quiet = !self.is_under_way(|message| match message {
            Message::Acquire { client: of, .. }
            | Message::Granted { client: of, .. }
            | Message::Release { client: of, .. }
            | Message::Released { client: of, .. } => *of == client,
            _ => false,
        });
        match &self.clients[client].hold {
            Hold::Nothing if self.clients[client].line > 0 => {
                Some(Message::Acquire { client, sent })
            }
            Hold::Asking { .. } if quiet && !self.queue.contains(&client) => {
                Some(Message::Acquire { client, sent })
            }
            Hold::GivingBack { stay } if quiet => {
                let grant = stay.grant;
                Some(Message::Release { client, grant })
            }
            _ => None,
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            alive: true,
            asks: 0,
            line: 0,
            hold: Hold::Nothing,
        };
        let clients = self.asks.map(|asks| Client {
            asks,
            ..client.clone()
        });
        vec![State {
            now: 0,
            holder: None,
            queue: Vec::new(),
            last_token: 0,
            clients,
            wire: Vec::new(),
            losses: self.losses,
            deaths: self.deaths,
            renewals: self.renewals,
            reentries: self.reentries,
            waits_since: None,
            waited_too_long: false,
            left_behind: 0,
            seen: 0,
            token_fell: false,
            began_late: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, client) in state.clients.iter().enumerate() {
            if !client.alive {
                continue;
            }
            if client.asks > 0 {
                actions.push(Action::Ask(id));
            }
            if state.to_send(id).is_some() {
                actions.push(Action::Send(id));
            }
            match &client.hold {
                Hold::Held(stay) => {
                    actions.push(Action::Leave(id));
                    if state.reentries > 0 && stay.is_good(state.now) {
                        actions.push(Action::Reenter(id));
                    }
                }
                Hold::Resting { ends, .. }
                    if *ends <= state.now && !self.has(Defect::RestsForEver) =>
                {
                    actions.push(Action::EndRest(id));
                }
                _ => {}
            }
            if let Hold::Held(stay) | Hold::Resting { stay, .. } = &client.hold
                && state.now < stay.valid_until
                && state.renewals > 0
            {
                actions.push(Action::Renew(id));
            }
            if state.deaths > 0 {
                actions.push(Action::Die(id));
            }
        }
        for index in 0..state.wire.len() {
            actions.push(Action::Deliver(index));
            if state.losses > 0 {
                actions.push(Action::Lose(index));
            }
        }
        if state.now < END && !self.is_urgent(state) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => {
                next.now += 1;
                for (_, age) in &mut next.wire {
                    *age += 1;
                }
                let since = next.waits_since.unwrap_or(next.now);
                next.waited_too_long |= next.now - since > self.longest_wait;
                self.settle(&mut next);
            }
            Action::Ask(client) => self.ask(&mut next, client),
            Action::Send(client) => {
                let message = next.to_send(client)?;
                if let Message::Acquire { sent, .. } = message {
                    next.clients[client].hold = Hold::Asking { sent };
                }
                next.send(message);
            }
            Action::Leave(client) => self.leave(&mut next, client),
            Action::Reenter(client) => {
                if let Hold::Held(stay) = &mut next.clients[client].hold {
                    next.reentries -= 1;
                    stay.guards += 1;
                }
            }
            Action::EndRest(client) => {
                if let Hold::Resting { stay, .. } = next.clients[client].hold {
                    self.give_back(&mut next, client, stay);
                }
            }
            Action::Renew(client) => {
                if let Hold::Held(stay) | Hold::Resting { stay, .. } = next.clients[client].hold {
                    let (grant, sent) = (stay.grant, next.now);
                    next.renewals -= 1;
                    next.send(Message::Renew {
                        client,
                        grant,
                        sent,
                    });
                }
            }
            Action::Deliver(index) => {
                let (message, _) = next.wire.remove(index);
                self.deliver(&mut next, message);
            }
            Action::Lose(index) => {
                next.losses -= 1;
                next.wire.remove(index);
            }
            Action::Die(client) => {
                next.deaths -= 1;
                next.clients[client] = Client {
                    alive: false,
                    asks: 0,
                    line: 0,
                    hold: Hold::Nothing,
                };
                next.queue.retain(|waiter| *waiter != client);
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one guard at a time", |_, state: &State| {
                let is_in = |client: &&Client| matches!(&client.hold, Hold::Held(stay) if client.alive && stay.is_good(state.now));
                let left_behind = usize::from(state.now < state.left_behind);
                state.clients.iter().filter(is_in).count() + left_behind < 2
            }),
            Property::always("tokens increase", |_, state: &State| !state.token_fell),
            Property::always("a guard begins with time left", |_, state: &State| {
                !state.began_late
            }),
            Property::always("what others wait for does not rest", |_, state: &State| {
                !state
                    .clients
                    .iter()
                    .any(|client| matches!(&client.hold, Hold::Resting { stay, .. } if stay.wanted))
            }),
            Property::always(
                "others wait no longer than the bounds",
                |_, state: &State| !state.waited_too_long,
            ),
            Property::eventually("everybody gets in", |_, state: &State| {
                state
                    .clients
                    .iter()
                    .all(|client| client.asks == 0 && client.line == 0)
            }),
            Property::sometimes("a hold is taken up after a rest", |_, state: &State| {
                state
                    .clients
                    .iter()
                    .any(|client| matches!(&client.hold, Hold::Held(stay) if stay.turn > 0))
            }),
        ]
    }
}

//! The rules, as core and a store follow them.

use stateright::{Model, Property};

/// Ticks of the store's lease; a client counts them from the sending.
const LEASE: u8 = 2;
/// How long a hold rests.
const LINGER: u8 = 3;
/// Tokens of a grant.
pub(crate) const TURNS: u8 = 2;
/// How late a message comes at most.
pub(crate) const LATE: u8 = 1;
/// How often the tasks of each client ask: once more than a grant has tokens, and once.
const ASKS: [u8; 2] = [TURNS + 1, 1];
/// How many renewals are sent.
const RENEWALS: u8 = 1;
/// By then everybody has asked.
const ASKED_BY: u8 = 2;
/// How long a task stays in at most.
const STAYS: u8 = 1;
/// By then everybody must have been in.
const END: u8 = 26;

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
}

#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) losses: u8,
    pub(crate) deaths: u8,
    pub(crate) defect: Option<Defect>,
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
    /// When the task got in.
    began: u8,
    valid_until: u8,
    wanted: bool,
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
    EndRest(ClientId),
    Renew(ClientId),
    Deliver(usize),
    Lose(usize),
    Die(ClientId),
}

impl Rules {
    pub(crate) fn new(losses: u8, deaths: u8) -> Self {
        Self {
            losses,
            deaths,
            defect: None,
        }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Whether a stay may begin in a hold.
    fn has_another(&self, stay: &Stay) -> bool {
        let turns = if self.has(Defect::MoreTurnsThanTokens) {
            TURNS + 1
        } else {
            TURNS
        };
        stay.turn + 1 < turns
    }

    /// A task has a guard from now on.
    fn begins(&self, state: &mut State, client: ClientId, mut stay: Stay) {
        stay.began = state.now;
        state.clients[client].hold = Hold::Held(stay);
        let token = stay.grant + stay.turn;
        state.token_fell |= token <= state.seen;
        state.began_late |= state.now >= stay.valid_until;
        state.seen = state.seen.max(token);
    }

    fn leave(&self, state: &mut State, client: ClientId) {
        let now = state.now;
        let Hold::Held(stay) = state.clients[client].hold.clone() else {
            return;
        };
        let in_time = now < stay.valid_until;
        if in_time && self.has_another(&stay) {
            let next = Stay {
                turn: stay.turn + 1,
                ..stay
            };
            if state.clients[client].line > 0 && !stay.wanted {
                state.clients[client].line -= 1;
                self.begins(state, client, next);
                return;
            }
            let rests = !stay.wanted || self.has(Defect::RestsThoughWanted);
            if state.clients[client].line == 0 && rests {
                let ends = now + LINGER;
                state.clients[client].hold = Hold::Resting { stay: next, ends };
                return;
            }
        }
        self.give_back(state, client, stay);
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
        let step = if self.has(Defect::TokensNotSetAside) {
            1
        } else {
            TURNS
        };
        let grant = state.last_token + 1;
        state.last_token += step;
        let until = state.now + LEASE;
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
                        holder.until = now + LEASE;
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
                        state.send(Message::Wanted {
                            client: other,
                            grant,
                        });
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
                    holder.until = now + LEASE;
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
                    stay.valid_until = stay.valid_until.max(from + LEASE);
                }
            }
            Message::Released { client, grant } => {
                if let Hold::GivingBack { stay } = state.clients[client].hold
                    && stay.grant == grant
                {
                    state.clients[client].hold = Hold::Nothing;
                }
            }
            Message::Wanted { client, grant } => match &mut state.clients[client].hold {
                Hold::Held(stay) if stay.grant == grant => stay.wanted = true,
                Hold::Resting { stay, .. } if stay.grant == grant => {
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
            began: state.now,
            valid_until: sent + LEASE,
            wanted: false,
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
        let sits = |client: &Client| sits(client) || client.asks > 0 && state.now >= ASKED_BY;
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
        let clients = ASKS.map(|asks| Client {
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
            renewals: RENEWALS,
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
                Hold::Held(_) => actions.push(Action::Leave(id)),
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
                let is_in = |client: &&Client| matches!(&client.hold, Hold::Held(stay) if client.alive && state.now < stay.valid_until);
                state.clients.iter().filter(is_in).count() < 2
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

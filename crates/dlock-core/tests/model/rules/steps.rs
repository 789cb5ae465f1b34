//! What clients and the store do, step by step.

use super::{
    Client, ClientId, Defect, Hold, Holder, LATE, LOCAL_TIME, Message, Rules, STAYS, State, Stay,
    Token,
};

impl Rules {
    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Whether a stay may begin in a hold.
    pub(super) fn has_another(&self, stay: &Stay) -> bool {
        let more = u8::from(self.has(Defect::MoreTurnsThanTokens));
        stay.turn + 1 < self.turns + more
    }

    /// Whether a hold may still go on from task to task.
    pub(super) fn is_in_local_time(&self, stay: &Stay, now: u8) -> bool {
        now < stay.granted + LOCAL_TIME
    }

    /// A task has a guard from now on.
    pub(super) fn begins(&self, state: &mut State, client: ClientId, mut stay: Stay) {
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

    pub(super) fn leave(&self, state: &mut State, client: ClientId) {
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
    pub(super) fn rests(&self, state: &mut State, client: ClientId, mut stay: Stay) -> bool {
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

    pub(super) fn give_back(&self, state: &mut State, client: ClientId, stay: Stay) {
        state.clients[client].hold = Hold::GivingBack { stay };
        let grant = stay.grant;
        state.send(Message::Release { client, grant });
    }

    /// A task asks: it has what rests, or stands in the line.
    pub(super) fn ask(&self, state: &mut State, client: ClientId) {
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
    pub(super) fn settle(&self, state: &mut State) {
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
    pub(super) fn waits(&self, state: &mut State) {
        if self.longest_wait < u8::MAX {
            state.waits_since = Some(state.now);
        }
    }

    /// A holder is told that others wait, if the store tells. It hears it once it listens.
    pub(super) fn tell(&self, state: &mut State, client: ClientId, grant: Token) {
        if self.tells {
            state.send(Message::Wanted { client, grant });
        }
    }

    pub(super) fn deliver(&self, state: &mut State, message: Message) {
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

    pub(super) fn granted(&self, state: &mut State, client: ClientId, grant: Token, sent: u8) {
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
    pub(super) fn is_urgent(&self, state: &State) -> bool {
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
    pub(super) fn send(&mut self, message: Message) {
        self.wire.push((message, 0));
        self.wire.sort();
    }

    pub(super) fn is_under_way(&self, of: impl Fn(&Message) -> bool) -> bool {
        self.wire.iter().any(|(message, _)| of(message))
    }

    /// What a client would send again, because it has heard nothing.
    pub(super) fn to_send(&self, client: ClientId) -> Option<Message> {
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

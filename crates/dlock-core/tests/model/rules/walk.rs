//! The walk: where it begins, what may happen next, and what must hold in every state.

use stateright::{Model, Property};

use super::{Action, Client, Defect, END, Hold, Message, Rules, State};

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

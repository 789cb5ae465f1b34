//! The rule for tokens, checked over every order of events: three nodes, attempts that overlap, requests and replies that are late
//! or lost, requests that arrive twice, holds that end at any time. docs/redlock.md says in words why it holds.
//!
//! The attempts decide by the same [`Ballot`] as the backend. A node is its script in a few lines. Time does not exist here: a hold
//! may expire while its holder believes in it, so exclusion is not checked, and the tokens must be right without it. A restart with
//! data is nothing but lost messages; one without is [`Step::Forget`].

mod checks;
mod queue;
mod renewal;

use stateright::{Model, Property};

use crate::vote::{Ballot, Verdict, Vote};

const NODES: usize = 3;
const RAISES: u8 = 2;
/// How many tokens a writer has, the last of which is the number that it owns at a quorum; 64 in earnest.
const TURNS: u8 = 3;

/// What is checked: which attempts there are, and what may go wrong.
struct Rules {
    /// Each attempt, and the token that it proposes.
    attempts: Vec<(Who, u8)>,
    /// How many requests may arrive a second time.
    strays: u8,
    /// How many times a node may lose its data.
    amnesia: u8,
    mistake: Mistake,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// Alone, with as many tokens as there are turns.
    Writer,
    /// Beside other readers, with one token.
    Reader,
    /// Alone, with one token, and nodes count by one for it: a client of the version before.
    OlderWriter,
}

/// What the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Nodes acknowledge a token which somebody else has written.
    CarelessRaise,
    /// Nodes count by one, and a writer takes the tokens below its number for its own.
    NothingSetAside,
}

impl Rules {
    fn who(&self, attempt: usize) -> Who {
        self.attempts[attempt].0
    }

    /// How far above the last number the next one is.
    fn step(&self, attempt: usize) -> u8 {
        match self.who(attempt) {
            Who::Writer if self.mistake != Mistake::NothingSetAside => TURNS,
            _ => 1,
        }
    }

    /// The tokens of those who have held the lock, from the first to the last of each.
    fn tokens(&self, world: &World) -> Vec<(u8, u8)> {
        let attempts = world.attempts.iter().enumerate();
        let held = attempts.filter_map(|(who, attempt)| match attempt.phase {
            Phase::Held { token, .. } => Some((who, token)),
            _ => None,
        });
        held.map(|(who, last)| match self.who(who) {
            Who::Writer => ((last + 1).saturating_sub(TURNS), last),
            _ => (last, last),
        })
        .collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Node {
    counter: u8,
    /// Who holds it, with the counter that is its own.
    holders: Vec<(usize, u8)>,
}

/// What is under way between an attempt and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Wire {
    Nothing,
    Ask,
    Granted(u8),
    Others(u8),
    Raise(u8),
    Raised(u8),
    TooLow(u8),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Outside,
    Asking,
    Raising { token: u8, round: u8 },
    Held { token: u8, raised: bool },
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Attempt {
    phase: Phase,
    /// The highest token that somebody held when this attempt began: its own must be higher.
    floor: u8,
    ballot: Option<Ballot>,
    wires: [Wire; NODES],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct World {
    nodes: [Node; NODES],
    attempts: Vec<Attempt>,
    strays: u8,
    amnesia: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin(usize),
    /// A request arrives, and its answer is sent.
    Arrive(usize, usize),
    /// An answer arrives.
    Answer(usize, usize),
    /// A request to take the lock arrives once more; nobody waits for its answer.
    Stray(usize, usize),
    /// The attempt waits no longer.
    TimeUp(usize),
    /// A hold ends at a node: its lease is over, or it was released.
    Expire(usize, usize),
    /// A node restarts without its data.
    Forget(usize),
}

impl Node {
    fn take(&mut self, attempt: usize, rules: &Rules) -> Wire {
        if let Some((_, own)) = self.holders.iter().find(|(who, _)| *who == attempt) {
            return Wire::Granted(*own);
        }
        let reads = |who| rules.who(who) == Who::Reader;
        let fits = |(other, _): &(usize, u8)| reads(attempt) && reads(*other);
        if !self.holders.iter().all(fits) {
            return Wire::Others(self.counter);
        }
        let (_, proposed) = rules.attempts[attempt];
        self.counter = proposed.max(self.counter + rules.step(attempt));
        self.holders.push((attempt, self.counter));
        self.holders.sort_unstable();
        Wire::Granted(self.counter)
    }

    fn raise(&mut self, attempt: usize, token: u8, careless: bool) -> Wire {
        let Some(hold) = self.holders.iter_mut().find(|(who, _)| *who == attempt) else {
            return Wire::Gone;
        };
        if hold.1 == token || careless && self.counter >= token {
            return Wire::Raised(token);
        }
        if self.counter >= token {
            return Wire::TooLow(self.counter);
        }
        self.counter = token;
        hold.1 = token;
        Wire::Raised(token)
    }
}

impl Attempt {
    fn ballot(&mut self) -> &mut Ballot {
        self.ballot.get_or_insert_with(|| Ballot::new(NODES))
    }

    /// What `Nodes::vote` and `Nodes::bring_together` do with what they know now.
    fn decide(&mut self, time_up: bool) {
        if time_up {
            let waits = matches!(self.phase, Phase::Asking);
            if waits {
                self.ballot().close();
            }
        }
        let verdict = self.ballot().verdict();
        match (self.phase, verdict) {
            (Phase::Asking, Verdict::Open) => {}
            (Phase::Asking, Verdict::Agreed(token)) => self.hold(token, false),
            (Phase::Asking, Verdict::Apart) => self.raise(0),
            (Phase::Raising { token, .. }, Verdict::Agreed(agreed))
                if agreed == u64::from(token) =>
            {
                self.hold(agreed, true);
            }
            (Phase::Raising { round, .. }, verdict) => {
                let waits = |wire: &Wire| {
                    matches!(
                        wire,
                        Wire::Raise(_) | Wire::Raised(_) | Wire::TooLow(_) | Wire::Gone
                    )
                };
                if !time_up && self.wires.iter().any(waits) {
                    return;
                }
                match verdict {
                    Verdict::Agreed(token) => self.hold(token, true),
                    Verdict::Apart if round + 1 < RAISES => self.raise(round + 1),
                    _ => self.fail(),
                }
            }
            (Phase::Asking, _) => self.fail(),
            _ => {}
        }
    }

    fn raise(&mut self, round: u8) {
        let ballot = self.ballot();
        let token = ballot.target();
        let lower = ballot.to_raise(token);
        let token = u8::try_from(token).expect("small");
        self.phase = Phase::Raising { token, round };
        self.wires = [Wire::Nothing; NODES];
        for node in lower {
            self.wires[node] = Wire::Raise(token);
        }
    }

    fn hold(&mut self, token: u64, raised: bool) {
        let token = u8::try_from(token).expect("small");
        self.end(Phase::Held { token, raised });
    }

    fn fail(&mut self) {
        self.end(Phase::Failed);
        self.floor = 0;
    }

    /// What is still under way matters no more: late requests are strays.
    fn end(&mut self, phase: Phase) {
        self.phase = phase;
        self.ballot = None;
        self.wires = [Wire::Nothing; NODES];
    }

    fn answered(&mut self, node: usize) {
        let wire = std::mem::replace(&mut self.wires[node], Wire::Nothing);
        let ballot = self.ballot();
        match wire {
            Wire::Granted(counter) => ballot.cast(node, Vote::Granted(counter.into())),
            Wire::Others(counter) => ballot.cast(node, Vote::Others(counter.into(), None)),
            Wire::Raised(token) => ballot.cast(node, Vote::Granted(token.into())),
            Wire::TooLow(counter) => ballot.found_above(counter.into()),
            Wire::Gone => ballot.cast(node, Vote::Failed),
            Wire::Nothing | Wire::Ask | Wire::Raise(_) => {}
        }
        self.decide(false);
    }
}

/// Nodes are alike: of all states that differ only in their order, one is looked at.
fn representative(world: &World) -> World {
    const ORDERS: [[usize; NODES]; 6] = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let orders = ORDERS.iter().map(|order| world.reordered(order));
    orders.min().expect("six orders")
}

impl World {
    fn reordered(&self, order: &[usize; NODES]) -> Self {
        let attempts = self.attempts.iter().map(|attempt| Attempt {
            ballot: attempt
                .ballot
                .as_ref()
                .map(|ballot| ballot.reordered(order)),
            wires: order.map(|node| attempt.wires[node]),
            ..attempt.clone()
        });
        Self {
            nodes: order.map(|node| self.nodes[node].clone()),
            attempts: attempts.collect(),
            ..self.clone()
        }
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let outside = Attempt {
            phase: Phase::Outside,
            floor: 0,
            ballot: None,
            wires: [Wire::Nothing; NODES],
        };
        vec![World {
            nodes: Default::default(),
            attempts: vec![outside; self.attempts.len()],
            strays: self.strays,
            amnesia: self.amnesia,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for (who, attempt) in world.attempts.iter().enumerate() {
            match attempt.phase {
                Phase::Outside => steps.push(Step::Begin(who)),
                Phase::Asking | Phase::Raising { .. } => steps.push(Step::TimeUp(who)),
                _ => {}
            }
            for (node, wire) in attempt.wires.iter().enumerate() {
                match wire {
                    Wire::Nothing => {}
                    Wire::Ask | Wire::Raise(_) => steps.push(Step::Arrive(who, node)),
                    _ => steps.push(Step::Answer(who, node)),
                }
                if world.strays > 0 && attempt.phase != Phase::Outside {
                    steps.push(Step::Stray(who, node));
                }
            }
        }
        for (node, state) in world.nodes.iter().enumerate() {
            steps.extend(
                state
                    .holders
                    .iter()
                    .map(|(who, _)| Step::Expire(node, *who)),
            );
            if world.amnesia > 0 && state.counter > 0 {
                steps.push(Step::Forget(node));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::Begin(who) => {
                let floor = self.tokens(world).iter().map(|(_, last)| *last).max();
                let attempt = &mut next.attempts[who];
                attempt.floor = floor.unwrap_or(0);
                attempt.phase = Phase::Asking;
                attempt.wires = [Wire::Ask; NODES];
            }
            Step::Arrive(who, node) => {
                let wire = &mut next.attempts[who].wires[node];
                *wire = match *wire {
                    Wire::Raise(token) => {
                        next.nodes[node].raise(who, token, self.mistake == Mistake::CarelessRaise)
                    }
                    _ => next.nodes[node].take(who, self),
                };
            }
            Step::Answer(who, node) => next.attempts[who].answered(node),
            Step::Stray(who, node) => {
                next.strays -= 1;
                next.nodes[node].take(who, self);
            }
            Step::TimeUp(who) => next.attempts[who].decide(true),
            Step::Expire(node, who) => next.nodes[node].holders.retain(|(other, _)| *other != who),
            Step::Forget(node) => {
                next.amnesia -= 1;
                next.nodes[node] = Node::default();
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("tokens are unique", |rules: &Self, world: &World| {
                let mut tokens = rules.tokens(world);
                tokens.sort_unstable();
                tokens.windows(2).all(|pair| pair[0].1 < pair[1].0)
            }),
            Property::always("tokens are ordered", |rules: &Self, world: &World| {
                let held = |attempt: &&Attempt| matches!(attempt.phase, Phase::Held { .. });
                let held = world.attempts.iter().filter(held);
                let mut tokens = rules.tokens(world).into_iter().zip(held);
                tokens.all(|((first, _), attempt)| first > attempt.floor)
            }),
            Property::sometimes(
                "all held it one after the other",
                |rules: &Self, world: &World| {
                    let last = world.attempts.iter().map(|attempt| attempt.floor).max();
                    rules.tokens(world).len() == world.attempts.len() && last > Some(0)
                },
            ),
            Property::sometimes("counters were raised", |_, world: &World| {
                let raised =
                    |attempt: &Attempt| matches!(attempt.phase, Phase::Held { raised: true, .. });
                world.attempts.iter().any(raised)
            }),
        ]
    }
}

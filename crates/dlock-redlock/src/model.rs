//! The rule for tokens, checked over every order of events: three nodes, attempts that overlap, requests and replies that are late
//! or lost, requests that arrive twice, holds that end at any time. docs/redlock.md says in words why it holds.
//!
//! The attempts decide by the same [`Ballot`](crate::vote::Ballot) as the backend. A node is its script in a few lines. Time does not exist here: a hold
//! may expire while its holder believes in it, so exclusion is not checked, and the tokens must be right without it. A restart with
//! data is nothing but lost messages; one without is [`Step::Forget`].

mod checks;
mod queue;
mod renewal;
mod world;

use stateright::{Model, Property};

use self::world::{Attempt, Node, Phase, Wire, World, representative};

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

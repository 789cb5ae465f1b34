//! Renewals and repairs, as a model that is walked through: one hold at three nodes, and others who want the lock.
//!
//! The state of the hold and the count of a renewal are the real ones (`stake/state.rs`, `renew/count.rs`); nodes and messages are drawn from
//! the scripts of `dlock-redis`. Holds end at single nodes at any moment, as by a clock that jumps or a lease that was not extended in
//! time, with one exception that time gives: a node that has extended the hold for a renewal keeps it until that renewal is decided.
//!
//! What must never happen: a renewal is told to the holder as a success after somebody else has held the lock at a quorum.

mod checks;

use dlock_core::Mode;
use stateright::{Model, Property};

use crate::renew::{Count, Progress};
use crate::stake::{Grant, Mask, State, bit};

const NODES: usize = 3;
const QUORUM: usize = 2;
const TOKEN: u64 = 10;

/// What may go wrong, and how often.
#[derive(Clone, Copy)]
struct Rules {
    rounds: u8,
    ends: u8,
    /// How many times others take the lock at a node.
    others: u8,
    /// The nodes that gave the hold at first.
    given: Mask,
    mistake: Mistake,
}

/// What the model must find.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A node that was given the hold again counts like before, whatever its number.
    EveryRepairCounts,
    /// Whoever extends counts.
    EveryExtensionCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    Nobody,
    Us,
    Others,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    counter: u64,
    /// Whom the lock's key names: it does so for a while after the hold has ended.
    named: Who,
    /// Whether that hold has not ended.
    held: bool,
}

impl Node {
    /// As acquire.lua does it for us.
    fn take(&mut self, proposed: u64) -> Option<u64> {
        match (self.named, self.held) {
            (Who::Us, _) => {}
            (Who::Others, true) => return None,
            _ => self.counter = proposed.max(self.counter + 1),
        }
        (self.named, self.held) = (Who::Us, true);
        Some(self.counter)
    }
}

/// What is under way for a renewal at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wire {
    Ask,
    Extended,
    Gone,
    Nothing,
}

/// What is under way for a repair at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repair {
    Nothing,
    Wanted,
    Asked(crate::stake::Asked, u64),
    Answered(crate::stake::Asked, Option<u64>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Renewing {
    count: Count,
    wires: [Wire; NODES],
    decided: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; NODES],
    state: State,
    renewal: Option<Renewing>,
    repairs: [Repair; NODES],
    /// The nodes that others hold it at now.
    theirs: Mask,
    rounds: u8,
    ends: u8,
    others: u8,
    /// Somebody else has held it at a quorum.
    others_held: bool,
    /// A renewal succeeded after that.
    told_wrongly: bool,
    extended: bool,
    lost: bool,
    repaired_counts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Answers that have not come to the renewal before are lost.
    Begin,
    /// A renewal arrives at a node.
    Arrive(usize),
    Answer(usize),
    /// The renewal waits no longer.
    TimeUp,
    /// A repair is sent, arrives, is answered, or its answer is lost.
    Send(usize),
    ArriveRepair(usize),
    AnswerRepair(usize),
    LoseRepair(usize),
    /// A hold ends at a node, ours or that of others.
    End(usize),
    /// Others give it back at a node.
    Free(usize),
    /// Others take it at a node.
    Take(usize),
}

impl World {
    fn decide(&mut self, time_up: bool) {
        let Some(renewal) = &mut self.renewal else {
            return;
        };
        let outcome = renewal.count.outcome(NODES, QUORUM);
        if !renewal.decided && (outcome != Progress::Open || time_up) {
            renewal.decided = true;
            match outcome {
                Progress::Extended => {
                    self.extended = true;
                    self.told_wrongly |= self.others_held;
                }
                // Core ends the hold: no repair, no further renewal.
                Progress::Lost => {
                    self.lost = true;
                    self.repairs = std::array::from_fn(|_| Repair::Nothing);
                }
                Progress::Open => {}
            }
        }
        if renewal.decided
            && let Some((round, nodes)) = renewal.count.vouches_for(NODES, QUORUM)
        {
            self.state.vouch(round, nodes);
        }
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut state = State::new(Mode::Exclusive);
        let mut nodes = [Node {
            counter: 0,
            named: Who::Nobody,
            held: false,
        }; NODES];
        for (place, node) in nodes.iter_mut().enumerate() {
            if self.given & bit(place) == 0 {
                continue;
            }
            let asked = state.begin(place).expect("allowed");
            let number = node.take(TOKEN).expect("free");
            let grant = Grant {
                number,
                counts: true,
                twice: false,
            };
            state.gave(place, asked, grant);
            state.settled(place);
        }
        state.held(TOKEN);
        vec![World {
            nodes,
            state,
            renewal: None,
            repairs: std::array::from_fn(|_| Repair::Nothing),
            theirs: 0,
            rounds: self.rounds,
            ends: self.ends,
            others: self.others,
            others_held: false,
            told_wrongly: false,
            extended: false,
            lost: false,
            repaired_counts: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let open = world.renewal.as_ref().is_some_and(|r| !r.decided);
        if world.rounds > 0 && !open && !world.lost {
            steps.push(Step::Begin);
        }
        if open {
            steps.push(Step::TimeUp);
        }
        for node in 0..NODES {
            match world.renewal.as_ref().map(|r| r.wires[node]) {
                Some(Wire::Ask) => steps.push(Step::Arrive(node)),
                Some(Wire::Extended | Wire::Gone) => steps.push(Step::Answer(node)),
                _ => {}
            }
            match &world.repairs[node] {
                Repair::Nothing => {}
                Repair::Wanted => {
                    // After the renewal that found it has been decided.
                    if !open {
                        steps.push(Step::Send(node));
                    }
                }
                Repair::Asked(..) => {
                    steps.extend([Step::ArriveRepair(node), Step::LoseRepair(node)]);
                }
                Repair::Answered(..) => {
                    steps.extend([Step::AnswerRepair(node), Step::LoseRepair(node)]);
                }
            }
            let state = &world.nodes[node];
            if state.held {
                let extended = |r: &Renewing| {
                    let counted = r.count.answered() & bit(node) != 0;
                    !r.decided && (r.wires[node] == Wire::Extended || counted)
                };
                let kept = state.named == Who::Us && world.renewal.as_ref().is_some_and(extended);
                if world.ends > 0 && !kept {
                    steps.push(Step::End(node));
                }
                if state.named == Who::Others {
                    steps.push(Step::Free(node));
                }
            } else if world.others > 0 {
                steps.push(Step::Take(node));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::Begin => {
                next.rounds -= 1;
                next.renewal = Some(Renewing {
                    count: Count::new(next.state.begin_round()),
                    wires: [Wire::Ask; NODES],
                    decided: false,
                });
            }
            Step::Arrive(node) => {
                let there = &next.nodes[node];
                let answer = match (there.named, there.held) {
                    (Who::Us, true) => Wire::Extended,
                    _ => Wire::Gone,
                };
                next.renewal.as_mut()?.wires[node] = answer;
            }
            Step::Answer(node) => {
                let renewal = next.renewal.as_mut()?;
                let wire = std::mem::replace(&mut renewal.wires[node], Wire::Nothing);
                if wire == Wire::Extended {
                    next.state.extended(renewal.count.round(), node);
                    let proven = next.state.is_proven(node);
                    let before = renewal.count.answered();
                    if self.mistake == Mistake::EveryExtensionCounts && !proven {
                        // As if the round had found it proven.
                        let mut all = Count::new(State::everywhere_proven());
                        for other in (0..NODES).filter(|other| before & bit(*other) != 0) {
                            all.extended(other, true);
                        }
                        all.extended(node, true);
                        renewal.count = all;
                    } else {
                        renewal.count.extended(node, proven);
                    }
                    let numbered = next.nodes[node].counter > TOKEN;
                    next.repaired_counts |= numbered && proven;
                } else {
                    renewal.count.lost(node);
                    next.state.lost(node);
                    if next.repairs[node] == Repair::Nothing && !next.lost {
                        next.repairs[node] = Repair::Wanted;
                    }
                }
                next.decide(false);
            }
            Step::TimeUp => next.decide(true),
            Step::Send(node) => {
                let proposed = next.state.proposal(node);
                next.repairs[node] = match next.state.begin(node) {
                    Some(asked) => Repair::Asked(asked, proposed),
                    None => Repair::Nothing,
                };
            }
            Step::ArriveRepair(node) => {
                let Repair::Asked(asked, proposed) = next.repairs[node] else {
                    return None;
                };
                let taken = next.nodes[node].take(proposed);
                next.repairs[node] = Repair::Answered(asked, taken);
            }
            Step::AnswerRepair(node) => {
                let repair = std::mem::replace(&mut next.repairs[node], Repair::Nothing);
                let Repair::Answered(asked, taken) = repair else {
                    return None;
                };
                match taken {
                    Some(number) => {
                        let number = match self.mistake {
                            Mistake::EveryRepairCounts => next.state.last_number(node),
                            _ => number,
                        };
                        let grant = Grant {
                            number,
                            counts: true,
                            twice: false,
                        };
                        next.state.gave(node, asked, grant);
                    }
                    None => next.state.gave_nothing(node, asked, false),
                }
                next.state.settled(node);
            }
            Step::LoseRepair(node) => {
                next.state.settled(node);
                next.repairs[node] = Repair::Nothing;
            }
            Step::End(node) => {
                next.ends -= 1;
                next.nodes[node].held = false;
                next.theirs &= !bit(node);
            }
            Step::Free(node) => {
                next.nodes[node].held = false;
                next.nodes[node].named = Who::Nobody;
                next.theirs &= !bit(node);
            }
            Step::Take(node) => {
                next.others -= 1;
                let there = &mut next.nodes[node];
                // Their proposal is their clock's, which may be behind.
                there.counter += 1;
                (there.named, there.held) = (Who::Others, true);
                next.theirs |= bit(node);
                if next.theirs.count_ones() as usize >= QUORUM {
                    next.others_held = true;
                    // They hold it with one token: counters that differ have been raised. What proves our first grants rests on that.
                    let theirs = next.theirs;
                    let nodes = next.nodes.iter_mut().enumerate();
                    let mut nodes: Vec<_> = nodes
                        .filter(|(place, _)| theirs & bit(*place) != 0)
                        .collect();
                    let token = nodes.iter().map(|(_, node)| node.counter).max()?;
                    nodes.iter_mut().for_each(|(_, node)| node.counter = token);
                }
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is extended that others have held", |_, world| {
                let world: &World = world;
                !world.told_wrongly
            }),
            Property::sometimes("extended", |_, world: &World| world.extended),
            Property::sometimes("lost after others held it", |_, world: &World| {
                world.lost && world.others_held
            }),
            Property::sometimes("a repaired node counts again", |_, world: &World| {
                world.repaired_counts
            }),
        ]
    }
}

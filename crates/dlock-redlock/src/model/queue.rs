//! The queue, checked over every order of events: waiters who ask three nodes at the same time or one after the other, calls that are lost,
//! places that a node has forgotten, a node that is down, a request to give way that comes a second time at any later moment. Nobody may wait for
//! ever while nobody holds the lock.
//!
//! Tokens and time are not in here: a place in a queue is a question that is answered later, and the model of tokens has requests that arrive
//! at any time. A node is its script in a few lines, and a waiter what `waiting.rs` does. Exclusion is checked too, since no hold ends by itself.

mod checks;
mod world;

use stateright::{Model, Property};

use self::world::{Phase, Waiter, Wire, World, split};

const NODES: usize = 3;
/// How often somebody with too few nodes gives way, while nothing else happens, before the model calls it for ever.
const PATIENCE: u8 = 2;

struct Queues {
    waiters: usize,
    /// This many nodes do not answer at all.
    down: usize,
    /// How many calls may be lost.
    lost_calls: u8,
    /// How many places may be forgotten.
    lost_places: u8,
    /// How many requests to give way may be sent twice, the second time on a connection that delivers it late.
    late: u8,
    /// Whether it begins in the middle, with [`split`].
    split: bool,
    mistake: Mistake,
}

/// What the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Each node numbers the waiters as they come to it.
    NodesNumber,
    /// Who gives way stands in the queue only after the lock was given on.
    StandsTooLate,
    /// Nobody gives way.
    NobodyGivesWay,
    /// A waiter does not ask again while it stands in a queue.
    NoSignsOfLife,
    /// A request to give way does not say which grant is given up.
    GivesWayWithoutNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin(usize),
    Arrive(usize, usize),
    /// A request to give way arrives, and is under way a second time.
    ArriveTwice(usize, usize),
    /// That second one arrives; nobody hears the answer.
    ArriveLate(usize),
    Hear(usize, usize),
    /// A call is lost.
    LoseCall(usize, usize),
    /// A node forgets a place: it was not renewed in time, or the node restarted.
    LosePlace(usize, usize),
    /// A sign of life of somebody who stands in a queue.
    AskAgain(usize, usize),
    GiveWay(usize),
    Release(usize),
}

impl Model for Queues {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let waiter = Waiter {
            phase: Phase::Outside,
            wires: [Wire::Nothing; NODES],
            has: [None; NODES],
            stands: [false; NODES],
            doubts: [false; NODES],
            patience: PATIENCE,
        };
        let mut world = World {
            nodes: Default::default(),
            waiters: vec![waiter; self.waiters],
            lost_calls: self.lost_calls,
            lost_places: self.lost_places,
            late: self.late,
            strays: Vec::new(),
        };
        if self.split {
            split(&mut world);
        }
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        // The pause before somebody gives way is longer than an answer takes; but several may do so at the same time.
        let giving = |wire: &Wire| matches!(wire, Wire::GiveWay(_));
        let quiet = world.is_quiet(giving);
        steps.extend((0..world.strays.len()).map(Step::ArriveLate));
        for (who, waiter) in world.waiters.iter().enumerate() {
            match waiter.phase {
                Phase::Outside => steps.push(Step::Begin(who)),
                Phase::Held => steps.push(Step::Release(who)),
                Phase::Waiting => {
                    let partly = waiter.nodes() > 0 && waiter.patience > 0;
                    if partly && quiet && self.mistake != Mistake::NobodyGivesWay {
                        steps.push(Step::GiveWay(who));
                    }
                }
                Phase::Released => {}
            }
            for (node, wire) in waiter.wires.iter().enumerate() {
                match wire {
                    Wire::Nothing if waiter.stands[node] && waiter.phase != Phase::Released => {
                        if self.mistake != Mistake::NoSignsOfLife {
                            steps.push(Step::AskAgain(who, node));
                        }
                    }
                    Wire::Nothing => {}
                    Wire::Ask | Wire::GiveWay(_) | Wire::Release => {
                        steps.push(Step::Arrive(who, node));
                        if world.late > 0 && matches!(wire, Wire::GiveWay(_)) {
                            steps.push(Step::ArriveTwice(who, node));
                        }
                    }
                    Wire::Granted(_) | Wire::Queued => steps.push(Step::Hear(who, node)),
                }
                if matches!(wire, Wire::Granted(_)) && world.lost_calls > 0 && waiter.stands[node] {
                    steps.push(Step::LoseCall(who, node));
                }
                let mut queue = world.nodes[node].queue.iter();
                if world.lost_places > 0 && queue.any(|(_, other)| *other == who) {
                    steps.push(Step::LosePlace(who, node));
                }
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        if !matches!(step, Step::Arrive(..) | Step::Hear(..) | Step::GiveWay(_)) {
            next.renew_patience();
        }
        match step {
            Step::Begin(who) => {
                next.waiters[who].phase = Phase::Waiting;
                for node in self.down..NODES {
                    next.waiters[who].wires[node] = Wire::Ask;
                }
            }
            Step::Arrive(who, node) => self.arrive(&mut next, who, node),
            Step::ArriveTwice(who, node) => {
                let Wire::GiveWay(number) = world.waiters[who].wires[node] else {
                    return None;
                };
                next.late -= 1;
                next.nodes[node].is_named = true;
                next.strays.push((who, node, number));
                next.waiters[who].doubts[node] = true;
                self.arrive(&mut next, who, node);
            }
            Step::ArriveLate(stray) => {
                let (who, node, number) = next.strays.remove(stray);
                if !next.nodes[node].refuses.contains(&who) {
                    self.ask(&mut next, who, node, Some(number));
                }
            }
            Step::Hear(who, node) => {
                let waiter = &mut next.waiters[who];
                waiter.has[node] = match waiter.wires[node] {
                    Wire::Granted(number) => Some(number),
                    _ => None,
                };
                waiter.wires[node] = Wire::Nothing;
                waiter.stands[node] = waiter.has[node].is_none();
                waiter.decide();
                // What comes after the release belongs to nobody, and is freed.
                if waiter.phase == Phase::Released {
                    waiter.wires[node] = Wire::Release;
                }
            }
            Step::LoseCall(who, node) => {
                next.lost_calls -= 1;
                next.waiters[who].wires[node] = Wire::Nothing;
            }
            Step::LosePlace(who, node) => {
                next.lost_places -= 1;
                next.nodes[node].queue.retain(|(_, other)| *other != who);
            }
            Step::AskAgain(who, node) => {
                // It changes nothing, and is left out, unless the node knows something else than the waiter.
                let mut queue = world.nodes[node].queue.iter();
                if queue.any(|(_, other)| *other == who) {
                    return None;
                }
                next.waiters[who].wires[node] = Wire::Ask;
            }
            Step::GiveWay(who) => {
                let waiter = &mut next.waiters[who];
                waiter.patience -= 1;
                for node in 0..NODES {
                    if let Some(number) = waiter.has[node].take() {
                        waiter.wires[node] = Wire::GiveWay(number);
                    }
                }
            }
            Step::Release(who) => {
                let waiter = &mut next.waiters[who];
                waiter.phase = Phase::Released;
                for node in 0..NODES {
                    let has = waiter.has[node].take().is_some();
                    let stands = std::mem::take(&mut waiter.stands[node]);
                    if (has || stands || waiter.doubts[node]) && waiter.wires[node] == Wire::Nothing
                    {
                        waiter.wires[node] = Wire::Release;
                    }
                }
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one at a time", |_, world: &World| {
                let held = |waiter: &&Waiter| waiter.phase == Phase::Held;
                world.waiters.iter().filter(held).count() <= 1
            }),
            Property::always("nobody waits for ever", |rules: &Self, world: &World| {
                let mut steps = Vec::new();
                rules.actions(world, &mut steps);
                let mut steps = steps.into_iter();
                let ended = |waiter: &Waiter| waiter.phase == Phase::Released;
                steps.any(|step| rules.next_state(world, step).is_some())
                    || world.waiters.iter().all(ended)
            }),
            Property::sometimes("somebody gave way", |_, world: &World| {
                let gave = |waiter: &Waiter| waiter.patience < PATIENCE;
                world.waiters.iter().any(gave)
            }),
        ]
    }
}

impl Queues {
    fn arrive(&self, next: &mut World, who: usize, node: usize) {
        let place = &mut next.nodes[node];
        let gives_way = match next.waiters[who].wires[node] {
            Wire::GiveWay(number) => Some(number),
            Wire::Release => {
                place.queue.retain(|(_, other)| *other != who);
                if place.holder == Some(who) {
                    place.holder = None;
                }
                if next.waiters[who].doubts[node] {
                    place.refuses.push(who);
                }
                next.waiters[who].wires[node] = Wire::Nothing;
                return next.call(node, who);
            }
            _ => None,
        };
        self.ask(next, who, node, gives_way);
        let place = &next.nodes[node];
        next.waiters[who].wires[node] = match place.holder == Some(who) {
            true => Wire::Granted(place.number),
            false => Wire::Queued,
        };
    }

    /// A request for the lock, as the node does it: perhaps one that gives up the grant of a number.
    fn ask(&self, next: &mut World, who: usize, node: usize, gives_way: Option<u8>) {
        let place = &mut next.nodes[node];
        let has = place.holder == Some(who);
        let given_up = gives_way.is_some_and(|number| {
            number == place.number || self.mistake == Mistake::GivesWayWithoutNumber
        });
        if has && given_up {
            place.holder = None;
            if self.mistake == Mistake::StandsTooLate {
                next.call(node, who);
                next.nodes[node].ask(who, self.mistake);
            } else {
                place.enter(who, self.mistake);
                next.call(node, who);
            }
        } else {
            place.ask(who, self.mistake);
            next.call(node, who);
        }
    }
}

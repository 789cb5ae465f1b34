//! The queue, checked over every order of events: waiters who ask three nodes at the same time or one after the other, calls that are lost,
//! places that a node has forgotten, a node that is down. Nobody may wait for ever while nobody holds the lock.
//!
//! Tokens and time are not in here: a place in a queue is a question that is answered later, and the model of tokens has requests that arrive
//! at any time. A node is its script in a few lines, and a waiter what `waiting.rs` does. Exclusion is checked too, since no hold ends by itself.

use stateright::{Checker, Model, Property};

use crate::vote::quorum_of;

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
}

/// Between a waiter and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wire {
    Nothing,
    Ask,
    GiveWay,
    Release,
    /// The answer, or the call: the node has given the lock.
    Granted,
    /// The answer: it stands in the queue.
    Queued,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Outside,
    Waiting,
    Held,
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Node {
    holder: Option<usize>,
    /// Tickets in order, with the waiters that brought them.
    queue: Vec<(usize, usize)>,
    /// How many have come, for the mistake.
    came: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    phase: Phase,
    wires: [Wire; NODES],
    /// The nodes that it has, as far as it knows.
    has: [bool; NODES],
    /// The nodes where it stands in the queue, as far as it knows.
    stands: [bool; NODES],
    patience: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; NODES],
    waiters: Vec<Waiter>,
    lost_calls: u8,
    lost_places: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin(usize),
    Arrive(usize, usize),
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

impl Node {
    fn enter(&mut self, who: usize, mistake: Mistake) {
        if self.queue.iter().any(|(_, other)| *other == who) {
            return;
        }
        self.came += 1;
        let ticket = match mistake {
            Mistake::NodesNumber => self.came,
            _ => who,
        };
        self.queue.push((ticket, who));
        self.queue.sort_unstable();
    }

    /// Whether it has the lock there now.
    fn ask(&mut self, who: usize, mistake: Mistake) -> bool {
        if self.holder.is_none() && self.queue.iter().all(|(_, other)| *other == who) {
            self.queue.clear();
            self.holder = Some(who);
        }
        if self.holder != Some(who) {
            self.enter(who, mistake);
        }
        self.holder == Some(who)
    }

    /// Gives a free lock to the first of the queue, and tells who that is.
    fn give_on(&mut self) -> Option<usize> {
        if self.holder.is_some() || self.queue.is_empty() {
            return None;
        }
        let (_, next) = self.queue.remove(0);
        self.holder = Some(next);
        Some(next)
    }
}

impl World {
    /// A node has given the lock on: its call is on the way.
    fn call(&mut self, node: usize, except: usize) {
        if let Some(next) = self.nodes[node].give_on()
            && next != except
        {
            // Where an answer is under way, it was given before; the next question finds the grant.
            let wire = &mut self.waiters[next].wires[node];
            if *wire == Wire::Nothing {
                *wire = Wire::Granted;
            }
        }
    }

    /// Something has happened: who gave way in vain has a reason to try again.
    fn renew_patience(&mut self) {
        for waiter in &mut self.waiters {
            waiter.patience = PATIENCE;
        }
    }

    fn is_quiet(&self, ignored: impl Fn(&Wire) -> bool) -> bool {
        let mut wires = self.waiters.iter().flat_map(|waiter| &waiter.wires);
        wires.all(|wire| *wire == Wire::Nothing || ignored(wire))
    }
}

impl Waiter {
    fn nodes(&self) -> usize {
        self.has.iter().filter(|has| **has).count()
    }

    fn decide(&mut self) {
        if self.phase == Phase::Waiting && self.nodes() >= quorum_of(NODES) {
            self.phase = Phase::Held;
        }
    }
}

impl Model for Queues {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let waiter = Waiter {
            phase: Phase::Outside,
            wires: [Wire::Nothing; NODES],
            has: [false; NODES],
            stands: [false; NODES],
            patience: PATIENCE,
        };
        vec![World {
            nodes: Default::default(),
            waiters: vec![waiter; self.waiters],
            lost_calls: self.lost_calls,
            lost_places: self.lost_places,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        // The pause before somebody gives way is longer than an answer takes; but several may do so at the same time.
        let giving = |wire: &Wire| matches!(wire, Wire::GiveWay);
        let quiet = world.is_quiet(giving);
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
                    Wire::Ask | Wire::GiveWay | Wire::Release => {
                        steps.push(Step::Arrive(who, node));
                    }
                    Wire::Granted | Wire::Queued => steps.push(Step::Hear(who, node)),
                }
                if *wire == Wire::Granted && world.lost_calls > 0 && waiter.stands[node] {
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
            Step::Hear(who, node) => {
                let waiter = &mut next.waiters[who];
                let granted = waiter.wires[node] == Wire::Granted;
                waiter.wires[node] = Wire::Nothing;
                waiter.has[node] = granted;
                waiter.stands[node] = !granted;
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
                    if std::mem::take(&mut waiter.has[node]) {
                        waiter.wires[node] = Wire::GiveWay;
                    }
                }
            }
            Step::Release(who) => {
                let waiter = &mut next.waiters[who];
                waiter.phase = Phase::Released;
                for node in 0..NODES {
                    let has = std::mem::take(&mut waiter.has[node]);
                    let stands = std::mem::take(&mut waiter.stands[node]);
                    if (has || stands) && waiter.wires[node] == Wire::Nothing {
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
        let asked = next.waiters[who].wires[node];
        let place = &mut next.nodes[node];
        let granted = match asked {
            Wire::GiveWay if place.holder == Some(who) => {
                place.holder = None;
                if self.mistake == Mistake::StandsTooLate {
                    next.call(node, who);
                    next.nodes[node].ask(who, self.mistake)
                } else {
                    place.enter(who, self.mistake);
                    next.call(node, who);
                    next.nodes[node].holder == Some(who)
                }
            }
            Wire::Release => {
                place.queue.retain(|(_, other)| *other != who);
                if place.holder == Some(who) {
                    place.holder = None;
                }
                next.waiters[who].wires[node] = Wire::Nothing;
                next.call(node, who);
                return;
            }
            _ => {
                let granted = place.ask(who, self.mistake);
                next.call(node, who);
                granted
            }
        };
        next.waiters[who].wires[node] = match granted {
            true => Wire::Granted,
            false => Wire::Queued,
        };
    }
}

const ALL: usize = 20_000_000;

fn check(rules: Queues) -> impl Checker<Queues> {
    let checker = rules.checker().threads(2).target_state_count(ALL);
    let checker = checker.spawn_dfs().join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    assert!(checker.state_count() < ALL, "not all were looked at");
    checker
}

fn queues(waiters: usize, down: usize, mistake: Mistake) -> Queues {
    Queues {
        waiters,
        down,
        lost_calls: 0,
        lost_places: 0,
        mistake,
    }
}

#[test]
fn everybody_who_waits_gets_the_lock() {
    for (waiters, down) in [(2, 0), (2, 1), (3, 1)] {
        check(queues(waiters, down, Mistake::None)).assert_properties();
    }
}

/// A lost call is found by the next sign of life, and a forgotten place is taken again.
#[test]
fn lost_calls_and_places_stop_nobody() {
    for (down, lost_calls, lost_places) in [(0, 1, 0), (0, 0, 1), (1, 1, 1)] {
        let rules = Queues {
            lost_calls,
            lost_places,
            ..queues(2, down, Mistake::None)
        };
        let checker = check(rules);
        checker.assert_no_discovery("one at a time");
        checker.assert_no_discovery("nobody waits for ever");
    }
}

/// Where nodes have different orders, or nobody gives way, or two give way to each other, they block each other for ever.
#[test]
fn mistakes_of_the_queue_are_found() {
    for mistake in [
        Mistake::NodesNumber,
        Mistake::StandsTooLate,
        Mistake::NobodyGivesWay,
    ] {
        let checker = check(queues(2, 1, mistake));
        let found = checker.discovery("nobody waits for ever");
        assert!(found.is_some(), "{mistake:?}");
        checker.assert_no_discovery("one at a time");
    }
    let rules = Queues {
        lost_calls: 1,
        ..queues(2, 1, Mistake::NoSignsOfLife)
    };
    let checker = check(rules);
    checker.assert_any_discovery("nobody waits for ever");
}

//! What the scripts do to one lock that is asked for alone (mode `X`), first come, first served. A rule stands beside the words of the script that it is
//! taken from; all of a script happens at once, as the server does nothing else meanwhile.

use crate::{Defect, LEASE, MEMORY, PATIENCE, Rules};

/// How many ask for the lock, each with one attempt.
pub(crate) const ATTEMPTS: usize = 3;
pub(crate) type Attempt = usize;
pub(crate) type Token = u8;
pub(crate) type Tick = u8;

/// The six keys of a lock, and who listens to its inbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    /// The counter, which stays when the lock is free. One is set aside for each hold: that a hold has many is in the model of core.
    pub(crate) token: Token,
    /// Written until a script writes something else, also when the lease has ended.
    pub(crate) value: Option<Value>,
    /// Q, in the order of the tickets.
    pub(crate) queue: Vec<Attempt>,
    /// W: the end of each waiter's lease.
    pub(crate) waiters: [Tick; ATTEMPTS],
    /// T: how long requests of an abandoned attempt are refused.
    pub(crate) tombstones: [Tick; ATTEMPTS],
    /// `PUBSUB NUMSUB`.
    pub(crate) listens: [bool; ATTEMPTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Value {
    pub(crate) owner: Attempt,
    pub(crate) expires: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    /// Takes the lock, confirms a grant, or is a sign of life.
    Acquire,
    Renew,
    Release,
    /// With a tombstone, or without one where nothing can be under way.
    Abandon {
        remembered: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    Held(Token),
    /// With the last token that was given out.
    Others(Token),
    Abandoned,
    Renewed,
    Gone,
    /// Of a release or an abandon.
    Done,
    /// The server refuses writes, and the script has changed nothing.
    Refused,
}

/// A message: whose turn it is, and the token if it has its whole lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Letter {
    pub(crate) to: Attempt,
    pub(crate) token: Option<Token>,
}

/// One run of a script.
struct Script<'a> {
    rules: &'a Rules,
    store: &'a mut Store,
    now: Tick,
    me: Attempt,
    /// `finish` publishes them when everything is written, and nothing else publishes.
    letters: Vec<Letter>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            token: 0,
            value: None,
            queue: Vec::new(),
            waiters: [0; ATTEMPTS],
            tombstones: [0; ATTEMPTS],
            listens: [true; ATTEMPTS],
        }
    }

    /// Who holds it: `left > 0`.
    pub(crate) fn holder(&self, now: Tick) -> Option<Attempt> {
        let value = self.value.filter(|value| value.expires > now)?;
        Some(value.owner)
    }

    /// What has passed makes no difference any more.
    pub(crate) fn forget(&mut self, now: Tick) {
        let old = self.waiters.iter_mut().chain(&mut self.tombstones);
        let expires = self.value.iter_mut().map(|value| &mut value.expires);
        for time in old.chain(expires).filter(|time| **time <= now) {
            *time = 0;
        }
    }

    /// Runs a script to its end, and returns what it tells.
    pub(crate) fn run(
        &mut self,
        rules: &Rules,
        now: Tick,
        me: Attempt,
        request: Request,
    ) -> (Answer, Vec<Letter>) {
        let mut script = Script {
            rules,
            store: self,
            now,
            me,
            letters: Vec::new(),
        };
        let answer = match request {
            Request::Acquire => script.acquire(),
            Request::Renew => script.renew(),
            Request::Release => script.release(),
            Request::Abandon { remembered } => script.abandon(remembered),
        };
        (answer, script.letters)
    }
}

impl Script<'_> {
    /// acquire.lua and wait.lua.
    fn acquire(&mut self) -> Answer {
        let (me, now) = (self.me, self.now);
        if let Some(value) = &mut self.store.value
            && value.owner == me
        {
            // "Ours already."
            if !self.rules.has(Defect::SignOfLifeFindsNoGrant) {
                value.expires = now + LEASE;
                return Answer::Held(self.store.token);
            }
        }
        // "local tombstone = not clean and redis.call('ZSCORE', T, me)"
        if self.store.tombstones[me] > now {
            return Answer::Abandoned;
        }
        // "if fair or not admits(m) then head = settle(true) end"
        let head = self.settle(Some(me));
        if self.store.holder(now).is_none() && head.is_none_or(|head| head == me) {
            self.leave(me);
            self.take(me, LEASE);
            return Answer::Held(self.store.token);
        }
        // "if not redis.call('ZSCORE', Q, me) ... stand()"
        if !self.store.queue.contains(&me) {
            self.store.queue.push(me);
        }
        self.store.waiters[me] = now + PATIENCE;
        Answer::Others(self.store.token)
    }

    /// renew.lua: "if v and sub(v, OWNER, OWNER_END) == attempt ... if redis.call('PTTL', key) > fence".
    fn renew(&mut self) -> Answer {
        let (me, now) = (self.me, self.now);
        match &mut self.store.value {
            Some(value) if value.owner == me && value.expires > now => {
                value.expires = now + LEASE;
                Answer::Renewed
            }
            _ => Answer::Gone,
        }
    }

    /// release.lua and pass_on.lua.
    fn release(&mut self) -> Answer {
        self.free();
        if !self.rules.has(Defect::ReleaseGivesToNobody) {
            self.settle(None);
        }
        Answer::Done
    }

    fn abandon(&mut self, remembered: bool) -> Answer {
        self.leave(self.me);
        self.free();
        // "ZADD T now + memory me"
        if remembered && !self.rules.has(Defect::NoTombstone) {
            let memory = if self.rules.has(Defect::TombstoneForgotEarly) {
                1
            } else {
                MEMORY
            };
            self.store.tombstones[self.me] = self.now + memory;
        }
        self.settle(None);
        Answer::Done
    }

    /// "if owner ~= attempt then return false end". What has ended is not written again: the value of `save` is the counter alone.
    fn free(&mut self) {
        let ended = self.store.holder(self.now).is_none();
        let is_mine = self.store.value.is_some_and(|value| value.owner == self.me);
        if ended || is_mine || self.rules.has(Defect::FreesWhateverIsHeld) {
            self.store.value = None;
        }
    }

    /// Gives the lock to the waiter whose turn it is, and writes to it. Returns who is first now; "stops in front of `me`, who is here and needs no
    /// message". A release and an abandon are of nobody who waits.
    fn settle(&mut self, waits: Option<Attempt>) -> Option<Attempt> {
        loop {
            let head = *self.store.queue.first()?;
            if waits == Some(head) || self.store.holder(self.now).is_some() {
                return Some(head);
            }
            let left = self.store.waiters[head].saturating_sub(self.now);
            // "A waiter whose inbox nobody listens to has lost its connection."
            let lives = left > 0 && self.store.listens[head] && head != self.me;
            self.leave(head);
            if !lives {
                continue;
            }
            // "A waiter that gave a sign of life a moment ago gets its whole lease and is told the token."
            let whole = left * 3 >= PATIENCE * 2;
            self.take(head, if whole { LEASE } else { PATIENCE });
            let token = whole.then_some(self.store.token);
            self.letters.push(Letter { to: head, token });
        }
    }

    fn take(&mut self, owner: Attempt, lasts: Tick) {
        let granted = owner != self.me;
        let expires = if granted && self.rules.has(Defect::GrantNeverTakenBack) {
            Tick::MAX
        } else {
            self.now + lasts
        };
        if !(granted && self.rules.has(Defect::GrantKeepsTheToken)) {
            self.store.token += 1;
        }
        self.store.value = Some(Value { owner, expires });
    }

    fn leave(&mut self, attempt: Attempt) {
        self.store.queue.retain(|waiter| *waiter != attempt);
        self.store.waiters[attempt] = 0;
    }
}

//! Proof that the session lives, and that each hold is still there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{Error, ErrorKind, LossReason};

use crate::ZkBackend;
use crate::acquire::HeldNode;
use crate::connect::Session;
use crate::error::{Fault, disconnected, not_ours};
use crate::queue::{NodeState, node_data};

impl ZkBackend {
    /// One trip for all: an empty transaction, which needs a majority, and behind it a look at each node. A heartbeat would not do, nor a `sync`: a
    /// follower that has lost its leader answers the one, and a leader that has lost its followers the other, for some time.
    pub(crate) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let session = match self.sessions.current() {
            Some(session) if session.is_ended() => session,
            // Taken up again, if its runtime has ended.
            Some(_) => match self.sessions.session().await {
                Ok(session) => session,
                Err(error) => return failed(leases, &error),
            },
            None => {
                return failed(
                    leases,
                    &Error::new(ErrorKind::Closed, "this client was closed"),
                );
            }
        };
        if session.is_ended() {
            let ended = || Renewal::Lost(LossReason::SessionEnded);
            return leases.iter().map(|_| ended()).collect();
        }
        if !session.is_up() {
            // What is sent now would arrive, but nobody knows when.
            return failed(leases, &disconnected());
        }
        let proven = session.prove();
        let looks: Vec<_> = leases.iter().map(|lease| look(&session, lease)).collect();
        if let Err(fault) = proven.await {
            return match fault {
                Fault::Ended(_) if session.is_ended() => leases
                    .iter()
                    .map(|_| Renewal::Lost(LossReason::SessionEnded))
                    .collect(),
                fault => failed(leases, &fault.into()),
            };
        }
        futures::future::join_all(looks).await
    }
}

/// Sends the question at once, as long as the session is the hold's own.
fn look(session: &Session, lease: &Arc<Lease>) -> impl Future<Output = Renewal> + use<> {
    let lease = lease.clone();
    let asked = match lease.native::<HeldNode>() {
        None => Err(Renewal::Failed(not_ours())),
        Some(node) if node.session != session.id() => Err(Renewal::Lost(LossReason::SessionEnded)),
        Some(node) => Ok((session.stat(&node.path), tell_again(session, node))),
    };
    async move {
        let (stat, told) = match asked {
            Err(known) => return known,
            Ok(asked) => asked,
        };
        let answer = match stat.await {
            Ok(Some(_)) => Renewal::Extended,
            Ok(None) => Renewal::Lost(LossReason::Gone),
            Err(fault) => Renewal::Failed(fault.into()),
        };
        if let Some(told) = told
            && told.await.is_err()
            && let Some(node) = lease.native::<HeldNode>()
        {
            node.untold.store(true, Ordering::Relaxed);
        }
        answer
    }
}

/// A permit's word to its successor may have been lost with a connection.
fn tell_again(
    session: &Session,
    node: &HeldNode,
) -> Option<impl Future<Output = Result<(), Fault>> + use<>> {
    let untold = node.untold.swap(false, Ordering::Relaxed);
    untold.then(|| session.set_data(&node.path, &node_data(NodeState::Granted, &node.label)))
}

fn failed(leases: &[Arc<Lease>], error: &Error) -> Vec<Renewal> {
    let again = || Error::new(error.kind(), error.message());
    leases.iter().map(|_| Renewal::Failed(again())).collect()
}

//! Ports on loopback that no other test and no other program takes meanwhile.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Doing;
use crate::{Result, folder};

/// The lowest port given out: well-known servers live below.
const LOWEST: u16 = 10_000;

/// A port that belongs to this value until it is dropped.
///
/// Other test processes keep off by a locked file per port. Programs that know nothing of that file keep off because
/// the port lies below the range from which the kernel gives ports to outgoing connections. A port of that range (what
/// binding port 0 gives) could be taken by any connection while a server is being restarted, and a client that tries to
/// reach the dead server could even connect to itself.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// Holds the lock; the kernel frees it when the process dies.
    _claim: File,
}

impl Port {
    /// Claims a free port.
    pub(crate) fn claim() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let claims = folder::shared("ports")?;
        let span = u32::from(outgoing_from() - LOWEST);
        // Processes start at different places, so that they seldom meet.
        let start = std::process::id().wrapping_mul(509);
        for _ in 0..span {
            let step = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let number =
                LOWEST + u16::try_from(step % span).expect("the span of ports is below 65536");
            let path = claims.join(number.to_string());
            let claim = folder::lock_file(&path).doing(format!("open {}", path.display()))?;
            if claim.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
            {
                return Ok(Self {
                    number,
                    _claim: claim,
                });
            }
        }
        Err(std::io::Error::from(std::io::ErrorKind::AddrInUse)).doing("find a free port")
    }

    /// The number of the port.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Where the kernel's range for outgoing connections begins.
fn outgoing_from() -> u16 {
    const USUAL: u16 = 32_768;
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|&first| first > LOWEST + 1000)
        .unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn claimed_ports_differ_and_can_be_bound() {
        let ports: Vec<_> = (0..50).map(|_| Port::claim().unwrap()).collect();
        let numbers: HashSet<_> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), ports.len());
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
        }
    }

    #[test]
    fn a_claim_keeps_others_off_until_it_is_dropped() {
        let port = Port::claim().unwrap();
        let path = folder::shared("ports")
            .unwrap()
            .join(port.number().to_string());
        let other = folder::lock_file(&path).unwrap();
        other.try_lock().unwrap_err();
        drop(port);
        other.try_lock().unwrap();
    }
}

//! How a hold ended, in one byte that everybody may read.

use crate::LossReason;

/// How a hold ended, for its guards. A release and a loss exclude each other ([C9](crate::contract#c9)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    NotYet,
    LetGo,
    Lost(LossReason),
}

const NOT_YET: u8 = 0;
const LET_GO: u8 = 1;
const LOST: u8 = 2;

pub(super) fn code_of(ending: Ending) -> u8 {
    match ending {
        Ending::NotYet => NOT_YET,
        Ending::LetGo => LET_GO,
        Ending::Lost(LossReason::Expired) => LOST,
        Ending::Lost(LossReason::Gone) => LOST + 1,
        Ending::Lost(LossReason::SessionEnded) => LOST + 2,
        Ending::Lost(LossReason::MaxHold) => LOST + 3,
        Ending::Lost(LossReason::Closed) => LOST + 4,
    }
}

pub(super) fn ending_of(code: u8) -> Ending {
    match code {
        NOT_YET => Ending::NotYet,
        LET_GO => Ending::LetGo,
        LOST => Ending::Lost(LossReason::Expired),
        3 => Ending::Lost(LossReason::Gone),
        4 => Ending::Lost(LossReason::SessionEnded),
        5 => Ending::Lost(LossReason::MaxHold),
        _ => Ending::Lost(LossReason::Closed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_survive_their_code() {
        for ending in [
            Ending::NotYet,
            Ending::LetGo,
            Ending::Lost(LossReason::Expired),
            Ending::Lost(LossReason::Gone),
            Ending::Lost(LossReason::SessionEnded),
            Ending::Lost(LossReason::MaxHold),
            Ending::Lost(LossReason::Closed),
        ] {
            assert_eq!(ending_of(code_of(ending)), ending);
        }
    }
}

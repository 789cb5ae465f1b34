//! A fencing token as a number that SQL's signed `BIGINT`, and everything that counts in 64 signed bits, can hold.

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MESSAGE: &str =
    "a fencing token must be from 0 to 9223372036854775807, as a signed BIGINT holds it";

pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    i64::try_from(*number)
        .map_err(|_| S::Error::custom(MESSAGE))?
        .serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(deserializer)?;
    if i64::try_from(number).is_err() {
        return Err(D::Error::custom(MESSAGE));
    }
    Ok(number)
}

//! A fencing token as a number that SQL's signed `BIGINT`, and everything that counts in 64 signed bits, can hold.
//!
//! In text (JSON) a number above 2^53 - 1 is written as a string: JavaScript, `jq` and all who keep numbers as doubles would else read another
//! one, and two tokens that differ could become one. Both forms are read.

use std::fmt;

use serde::de::{Error as _, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MESSAGE: &str =
    "a fencing token must be from 0 to 9223372036854775807, as a signed BIGINT holds it";
/// The highest number up to which doubles know every integer.
const EXACT: i64 = (1 << 53) - 1;

pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    let number = i64::try_from(*number).map_err(|_| S::Error::custom(MESSAGE))?;
    if serializer.is_human_readable() && number > EXACT {
        return serializer.collect_str(&number);
    }
    // As it is read: formats that write signed and unsigned numbers in different ways would else read another one.
    number.unsigned_abs().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = if deserializer.is_human_readable() {
        deserializer.deserialize_any(NumberOrText)?
    } else {
        u64::deserialize(deserializer)?
    };
    if i64::try_from(number).is_err() {
        return Err(D::Error::custom(MESSAGE));
    }
    Ok(number)
}

struct NumberOrText;

impl Visitor<'_> for NumberOrText {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fencing token, as a number or as its digits in a string")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(|_| E::custom(MESSAGE))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        text.parse().map_err(|_| E::custom(MESSAGE))
    }
}

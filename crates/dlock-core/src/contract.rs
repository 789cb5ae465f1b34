//! The contract, clause by clause: what the numbers mean that the documentation names, such as [C13](crate::contract#c13).
//!
#![doc = include_str!("contract.md")]

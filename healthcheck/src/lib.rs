//! See the package description in Cargo.toml.
pub mod kmsg;
pub mod xid;
pub mod verdict;

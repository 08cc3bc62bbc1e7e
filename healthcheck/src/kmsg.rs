//! The kernel log: records of `/dev/kmsg`, a reader that keeps its place, and the renderings other tools give a record.
//!
//! Record format: Linux `Documentation/ABI/testing/dev-kmsg`. A record is `PRIO,SEQ,USEC,FLAGS[,KEY=VALUE]...;TEXT`, then
//! dictionary lines ` KEY=VALUE`. Bytes below 32, above 126 and the backslash come as `\xNN`.

mod line;
mod reader;
mod record;

pub use line::{LogLine, parse_log_line};
pub use reader::{Batch, Cursor, Error, FilePosition, Reader};
pub use record::{Continuation, Record, RecordError, parse_record};

#[cfg(test)]
mod tests;

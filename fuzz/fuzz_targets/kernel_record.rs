//! Raw kernel log records.

#![no_main]

use healthcheck::kmsg::parse_record;
use healthcheck::xid::{Drain, Scanner, fold, policy};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut scanner, mut events) = (Scanner::default(), Vec::new());
    for bytes in data.split(|b| *b == 0) {
        let Ok(record) = parse_record(bytes) else { continue };
        assert_eq!(parse_record(record.encode().trim_end_matches('\n').as_bytes()).as_ref(), Ok(&record));
        scanner.push(&record, |event| events.push(event));
    }
    for event in &events {
        let rule = policy(event);
        assert!(rule.drain != Drain::Decode && event.token().len() <= 10 && event.text.len() <= 1100);
    }
    let count = events.len() as u64;
    assert_eq!(fold(events).iter().map(|f| f.count).sum::<u64>(), count);
});

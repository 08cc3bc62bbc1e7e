//! Memory errors, spare rows, repairs, and the infoROM.

use super::{Seen, busy, each, judged, rate};
use crate::check::{Context, Sink};
use crate::facts::{GpuDetails, Reading};
use crate::verdict::{Action, Status};

/// Corrected errors a second, over a minute or more, that are worth a look: a dying HBM gave 4,600 to 17,600.
const CORRECTED_PER_SECOND: f64 = 1000.0;
/// Remapped rows at which NVIDIA's rule replaces the GPU.
const REMAPPED_MAX: u64 = 512;
/// Retired pages at which NVIDIA's rule replaces the GPU.
const RETIRED_MAX: u64 = 63;
/// Pages retired for double-bit errors that, with more than one in a week, replace it too.
const RETIRED_DOUBLE_BIT: u64 = 15;

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    each(c, sink, "gpu.ecc_sram_threshold", "sramlimit", sram_threshold);
    each(c, sink, "gpu.ecc_ce_rate", "eccrate", corrected_rate);
    each(c, sink, "gpu.remap_headroom", "rowspare", headroom);
    each(c, sink, "gpu.repair_pending", "repair", repair);
    each(c, sink, "gpu.retired_pages", "retired", retired_pages);
    each(c, sink, "gpu.inforom", "inforom", inforom);
}

fn sram_threshold(_: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.sram_threshold_exceeded, |exceeded| {
        if *exceeded {
            let mut f = seen.finding(sink, "gpu.ecc_sram_threshold", "sramlimit", Status::Fail);
            f.action = Action::Repair;
            f.text = "SRAM error threshold exceeded".into();
            f.evidence = "NVML: SRAM threshold exceeded flag is set".into();
            f.mend = "replace the GPU: NVIDIA's RMA rule".into();
            sink.push(f);
        }
    })
}

fn corrected_rate(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.details.ecc_corrected, |_| {
        let Some(rate) = rate(c, seen, "ecc_corrected", 60.0).filter(|r| *r > CORRECTED_PER_SECOND) else {
            return;
        };
        let mut f = seen.finding(sink, "gpu.ecc_ce_rate", "eccrate", Status::Warn);
        f.action = Action::ResetGpu;
        f.text = format!("{rate:.0} corrected memory errors a second");
        f.evidence = format!("NVML: corrected ECC errors rise by {rate:.0} a second over the last minute");
        f.mend = "test the GPU's memory before it fails: dcgmi diag -r 3 on the idle node".into();
        sink.push(f);
    })
}

fn headroom(_: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    let (spares, remapped) = (&seen.survey.row_spares, &seen.survey.remapped_uncorrectable);
    if let Some(n) = remapped.value().filter(|n| **n >= REMAPPED_MAX) {
        let mut f = seen.finding(sink, "gpu.remap_headroom", "rowspare", Status::Fail);
        f.action = Action::Repair;
        f.text = format!("{n} rows remapped for uncorrectable errors");
        f.evidence = format!("NVML: {n} uncorrectable rows remapped; {REMAPPED_MAX} is the most");
        f.mend = "replace the GPU: NVIDIA's RMA rule".into();
        sink.push(f);
        return Reading::Value(());
    }
    judged(spares, |s| {
        if s.low > 0 || s.none > 0 {
            let mut f = seen.finding(sink, "gpu.remap_headroom", "rowspare", Status::Warn);
            f.action = Action::Repair;
            f.text = format!("{} memory banks with few or no spare rows", s.low + s.none);
            f.evidence = format!("NVML row remapper: {} banks low, {} without spare rows", s.low, s.none);
            f.mend = "plan the GPU's replacement".into();
            sink.push(f);
        }
    })
}

fn repair(c: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    let GpuDetails { repair, unrepairable_memory, .. } = seen.details;
    if unrepairable_memory.value() == Some(&true) {
        let mut f = seen.finding(sink, "gpu.repair_pending", "memdead", Status::Fail);
        f.action = Action::Repair;
        f.text = "memory that cannot be repaired".into();
        f.evidence = "NVML: unrepairable memory flag is set".into();
        f.mend = "replace the GPU".into();
        sink.push(f);
    }
    judged(repair, |r| {
        let what = match (r.channel_pending, r.tpc_pending) {
            (false, false) => return,
            (true, false) => "memory channel repair",
            (false, true) => "TPC repair",
            (true, true) => "memory channel and TPC repair",
        };
        let busy = busy(c, seen.device);
        let status = if busy { Status::Warn } else { Status::Fail };
        let mut f = seen.finding(sink, "gpu.repair_pending", "repair", status);
        f.action = Action::ResetGpu;
        f.text = format!("{what} waits for a GPU reset");
        f.evidence =
            format!("NVML: {what} pending{}", if busy { "; a job holds the GPU and may finish" } else { "" });
        f.mend = "reset the GPU before the next job".into();
        sink.push(f);
    })
}

fn retired_pages(_: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.survey.retired_pages, |p| {
        let all = p.single_bit + p.double_bit;
        if all >= RETIRED_MAX || (p.double_bit > RETIRED_DOUBLE_BIT && p.double_bit_last_week > 1) {
            let mut f = seen.finding(sink, "gpu.retired_pages", "retired", Status::Fail);
            f.action = Action::Repair;
            f.text = format!("{all} memory pages retired");
            f.evidence = format!(
                "NVML: {} pages retired for single-bit and {} for double-bit errors, {} of those within a week",
                p.single_bit, p.double_bit, p.double_bit_last_week
            );
            f.mend = "replace the GPU: NVIDIA's RMA rule".into();
            sink.push(f);
        } else if p.pending {
            let mut f = seen.finding(sink, "gpu.retired_pages", "retired", Status::Fail);
            f.action = Action::Reboot;
            f.text = "page retirement waits for a reboot".into();
            f.evidence = "NVML: page retirement pending".into();
            f.mend = "reboot the node before the next job".into();
            sink.push(f);
        }
    })
}

fn inforom(_: &Context<'_>, sink: &mut Sink<'_>, seen: &Seen<'_>) -> Reading<()> {
    judged(&seen.survey.inforom_valid, |valid| {
        if !valid {
            let mut f = seen.finding(sink, "gpu.inforom", "inforom", Status::Warn);
            f.action = Action::Repair;
            f.text = "infoROM is corrupted".into();
            f.evidence = "NVML: infoROM checksum is wrong".into();
            f.mend = "ask the vendor's support: settings such as ECC mode may not be kept".into();
            sink.push(f);
        }
    })
}

//! Faults of a GPU and its driver that NVML tells and the kernel log does not.

use nvidia_ml_sim::model::{
    ClockEvent, ComputeMode, FabricState, Gpu, GpuFile, HealthFlag, NvLinkErrors, Process, RetiredPages,
    ReturnCode,
};

use crate::error::{Error, Result};

/// Name, argument and meaning, as `inject --list` shows them.
pub(super) const FAULTS: [(&str, &str, &str); 27] = [
    ("sram-threshold", "", "the SRAM error threshold of NVIDIA's replacement rule is exceeded"),
    (
        "ecc-corrected",
        "[:COUNT]",
        "corrected memory errors rise by so many (1000000), each time it is injected",
    ),
    ("rows-low", "", "a memory bank has few spare rows left"),
    ("rows-remapped", "[:COUNT]", "so many rows (512) were remapped for uncorrectable errors"),
    ("repair-pending", "", "a memory channel's repair waits for a reset (Blackwell)"),
    ("mem-unrepairable", "", "memory that cannot be repaired (Blackwell; the driver becomes 590.48.01)"),
    ("retired-pages", "[:COUNT]", "so many pages (63) were retired, as on GPUs before Ampere"),
    ("inforom", "", "the infoROM's checksum is wrong"),
    ("nvlink-slow", "", "the GPU's NVLinks run at half their speed"),
    (
        "nvlink-errors",
        "[:COUNT]",
        "errors and recoveries of NVLink 0 rise by so many (100), each time it is injected",
    ),
    (
        "fabric-state",
        "[:not_started|in_progress|failed]",
        "registration with the NVLink fabric (in_progress)",
    ),
    ("fabric-health", "[:bandwidth|route|timeout|config]", "the fabric's health mask (route)"),
    ("pcie-replay", "[:COUNT]", "the PCIe replay counter rises by so many (1000), each time it is injected"),
    ("power-brake", "", "the external power brake slows the GPU"),
    (
        "thermal",
        "[:SECONDS]",
        "so many seconds (600) of hardware thermal slowdown more, each time it is injected",
    ),
    ("idle-hot", "", "70 C without a process"),
    ("idle-power", "", "350 W without a process"),
    ("persistence-off", "", "persistence mode is off"),
    ("ecc-pending", "", "ECC will be off after the next reset"),
    ("mig-pending", "", "MIG mode will be on after the next reset"),
    ("mig-on", "", "MIG mode is on"),
    ("compute-prohibited", "", "compute mode lets nobody in"),
    ("power-limit", "", "the power limit is the lowest that can be set"),
    ("clocks-set", "", "clocks are held down by a setting"),
    ("gpu-process", ":PID", "this process of the machine has a compute context on the GPU"),
    ("vbios", "", "another VBIOS release than that of the other GPUs"),
    (
        "driver",
        "[:mismatch|unloaded]",
        "NVML does not start: library of another release than the loaded driver (mismatch), or no driver",
    ),
];

/// One of [`FAULTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "FAULTS says what each is")]
pub enum GpuFault {
    SramThreshold,
    EccCorrected(u32),
    RowsLow,
    RowsRemapped(u32),
    RepairPending,
    MemUnrepairable,
    RetiredPages(u32),
    Inforom,
    NvlinkSlow,
    NvlinkErrors(u32),
    FabricState(FabricState, ReturnCode),
    FabricHealth(FabricHealth),
    PcieReplay(u32),
    PowerBrake,
    Thermal(u32),
    IdleHot,
    IdlePower,
    PersistenceOff,
    EccPending,
    MigPending,
    MigOn,
    ComputeProhibited,
    PowerLimit,
    ClocksSet,
    Process(u32),
    Vbios,
    Driver(ReturnCode),
}

/// What the fabric's health mask complains about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "nvml.h's words")]
pub enum FabricHealth {
    Bandwidth,
    Route,
    Timeout,
    Config,
}

/// Driver release from which on NVML tells of unrepairable memory.
const TELLS_UNREPAIRABLE: &str = "590.48.01";

impl GpuFault {
    /// Reads a fault's name and argument; `None` when the name is none of these.
    pub(super) fn parse(name: &str, argument: Option<&str>) -> Option<Result<Self>> {
        let bad = |what: &str| Error::Usage(format!("the fault \"{name}\" takes {what}"));
        let none = |fault: Self| match argument {
            None => Ok(fault),
            Some(_) => Err(bad("no argument: write it without \":\"")),
        };
        let count = |fault: fn(u32) -> Self, default: u32, most: u32| match argument {
            None => Ok(fault(default)),
            Some(a) => match a.parse() {
                Ok(n) if (1..=most).contains(&n) => Ok(fault(n)),
                _ => Err(bad(&format!("a number from 1 to {most}"))),
            },
        };
        Some(match name {
            "sram-threshold" => none(Self::SramThreshold),
            "ecc-corrected" => count(Self::EccCorrected, 1_000_000, 1_000_000_000),
            "rows-low" => none(Self::RowsLow),
            "rows-remapped" => count(Self::RowsRemapped, 512, 10_000),
            "repair-pending" => none(Self::RepairPending),
            "mem-unrepairable" => none(Self::MemUnrepairable),
            "retired-pages" => count(Self::RetiredPages, 63, 100),
            "inforom" => none(Self::Inforom),
            "nvlink-slow" => none(Self::NvlinkSlow),
            "nvlink-errors" => count(Self::NvlinkErrors, 100, 1_000_000_000),
            "fabric-state" => match argument {
                None | Some("in_progress") => {
                    Ok(Self::FabricState(FabricState::InProgress, ReturnCode::Success))
                }
                Some("not_started") => Ok(Self::FabricState(FabricState::NotStarted, ReturnCode::Success)),
                Some("failed") => Ok(Self::FabricState(FabricState::Completed, ReturnCode::Unknown)),
                Some(_) => Err(bad("not_started, in_progress or failed")),
            },
            "fabric-health" => match argument {
                None | Some("route") => Ok(Self::FabricHealth(FabricHealth::Route)),
                Some("bandwidth") => Ok(Self::FabricHealth(FabricHealth::Bandwidth)),
                Some("timeout") => Ok(Self::FabricHealth(FabricHealth::Timeout)),
                Some("config") => Ok(Self::FabricHealth(FabricHealth::Config)),
                Some(_) => Err(bad("bandwidth, route, timeout or config")),
            },
            "pcie-replay" => count(Self::PcieReplay, 1000, 1_000_000),
            "power-brake" => none(Self::PowerBrake),
            "thermal" => count(Self::Thermal, 600, 86_400),
            "idle-hot" => none(Self::IdleHot),
            "idle-power" => none(Self::IdlePower),
            "persistence-off" => none(Self::PersistenceOff),
            "ecc-pending" => none(Self::EccPending),
            "mig-pending" => none(Self::MigPending),
            "mig-on" => none(Self::MigOn),
            "compute-prohibited" => none(Self::ComputeProhibited),
            "power-limit" => none(Self::PowerLimit),
            "clocks-set" => none(Self::ClocksSet),
            "gpu-process" => match argument.and_then(|a| a.parse().ok()) {
                Some(pid) => Ok(Self::Process(pid)),
                None => Err(bad("a process id: write gpu-process:PID")),
            },
            "vbios" => none(Self::Vbios),
            "driver" => match argument {
                None | Some("mismatch") => Ok(Self::Driver(ReturnCode::LibRmVersionMismatch)),
                Some("unloaded") => Ok(Self::Driver(ReturnCode::DriverNotLoaded)),
                Some(_) => Err(bad("mismatch or unloaded")),
            },
            _ => return None,
        })
    }

    /// The whole node's, not one GPU's.
    pub(super) fn is_nodes(&self) -> bool {
        matches!(self, Self::Driver(_))
    }

    /// Changes the GPU file.
    ///
    /// # Errors
    /// The GPU has no such part.
    pub(super) fn apply(&self, file: &mut GpuFile, index: usize) -> Result<()> {
        if let Self::Driver(code) = self {
            file.errors.insert("nvmlInit".to_owned(), *code);
            return Ok(());
        }
        if *self == Self::MemUnrepairable {
            TELLS_UNREPAIRABLE.clone_into(&mut file.driver_version);
        }
        let gpu = file.gpus.get_mut(index).ok_or_else(|| Error::Usage(format!("there is no GPU {index}")))?;
        self.change(gpu, index)
    }

    fn change(&self, gpu: &mut Gpu, index: usize) -> Result<()> {
        let lacks = |what: &str| Error::Usage(format!("GPU {index} ({}) has no {what}", gpu.name));
        match self {
            Self::SramThreshold => gpu.ecc.sram_threshold_exceeded = true,
            Self::EccCorrected(n) => {
                gpu.ecc.since_load.dram_corrected += u64::from(*n);
                gpu.ecc.aggregate.dram_corrected += u64::from(*n);
            }
            Self::RowsLow | Self::RowsRemapped(_) => {
                let missing = lacks("row remapping");
                let rows = gpu.remapped_rows.as_mut().ok_or(missing)?;
                rows.histogram.max = rows.histogram.max.saturating_sub(1);
                match self {
                    Self::RowsRemapped(n) => {
                        rows.uncorrectable = *n;
                        rows.histogram.high += 1;
                    }
                    _ => rows.histogram.low += 1,
                }
            }
            Self::RepairPending | Self::MemUnrepairable => {
                let missing = lacks("repair state; choose --model b200");
                let repair = gpu.repair.as_mut().ok_or(missing)?;
                if *self == Self::RepairPending {
                    repair.channel_pending = true;
                } else {
                    repair.unrepairable_memory = true;
                }
            }
            Self::RetiredPages(n) => {
                let single_bit = (0..u64::from(*n)).map(|page| page * 4096).collect();
                gpu.retired_pages = Some(RetiredPages { single_bit, ..RetiredPages::default() });
            }
            Self::Inforom => gpu.inforom_valid = false,
            Self::NvlinkSlow | Self::NvlinkErrors(_) => {
                let missing = lacks("NVLink");
                let nvlink = gpu.nvlink.as_mut().ok_or(missing)?;
                match self {
                    Self::NvlinkErrors(n) => raise_errors(&mut nvlink.errors, u64::from(*n)),
                    _ => nvlink.speed /= 2,
                }
            }
            Self::FabricState(..) | Self::FabricHealth(_) => {
                let missing = lacks("NVLink fabric; choose --model h100-sxm");
                let fabric = gpu.fabric.as_mut().ok_or(missing)?;
                match self {
                    Self::FabricState(state, status) => (fabric.state, fabric.status) = (*state, *status),
                    Self::FabricHealth(FabricHealth::Bandwidth) => {
                        fabric.degraded_bandwidth = HealthFlag::True
                    }
                    Self::FabricHealth(FabricHealth::Timeout) => {
                        fabric.access_timeout_recovery = HealthFlag::True
                    }
                    Self::FabricHealth(FabricHealth::Config) => fabric.incorrect_configuration = 2,
                    _ => fabric.route_unhealthy = HealthFlag::True,
                }
            }
            Self::PcieReplay(n) => gpu.pcie.replay_counter = gpu.pcie.replay_counter.saturating_add(*n),
            Self::PowerBrake => {
                gpu.clock_events.remove(&ClockEvent::GpuIdle);
                gpu.clock_events.extend([ClockEvent::HwSlowdown, ClockEvent::HwPowerBrakeSlowdown]);
            }
            Self::Thermal(seconds) => {
                gpu.clock_events.remove(&ClockEvent::GpuIdle);
                gpu.clock_events.extend([ClockEvent::HwSlowdown, ClockEvent::HwThermalSlowdown]);
                let time = gpu.clock_event_ns.entry(ClockEvent::HwThermalSlowdown).or_default();
                *time = time.saturating_add(u64::from(*seconds) * 1_000_000_000);
            }
            Self::IdleHot => gpu.temperature.gpu = 70,
            Self::IdlePower => gpu.power.usage = 350_000,
            Self::PersistenceOff => gpu.persistence_mode = false,
            Self::EccPending => gpu.ecc.pending = false,
            Self::MigPending | Self::MigOn => {
                let missing = lacks("MIG");
                let mig = gpu.mig.as_mut().ok_or(missing)?;
                mig.pending = true;
                mig.enabled = *self == Self::MigOn;
            }
            Self::ComputeProhibited => gpu.compute_mode = ComputeMode::Prohibited,
            Self::PowerLimit => gpu.power.limit = gpu.power.min_limit,
            Self::ClocksSet => {
                gpu.clock_events.insert(ClockEvent::ApplicationsClocksSetting);
            }
            Self::Process(pid) => {
                gpu.processes.push(Process { pid: *pid, used_memory: 512 << 20, kind: Default::default() });
            }
            Self::Vbios => "96.00.61.00.0A".clone_into(&mut gpu.vbios),
            Self::Driver(_) => {}
        }
        Ok(())
    }
}

/// Counts of both generations: the library answers with the one that the GPU's NVLink has.
fn raise_errors(all: &mut Vec<NvLinkErrors>, n: u64) {
    if !all.iter().any(|e| e.link == 0) {
        all.push(NvLinkErrors::default());
    }
    for e in all.iter_mut().filter(|e| e.link == 0) {
        for count in
            [&mut e.replay, &mut e.recovery, &mut e.crc_flit, &mut e.recovery_failed, &mut e.effective]
        {
            *count = count.saturating_add(n);
        }
        e.effective_ber = 3e-7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvidia_ml_sim::model::GpuModel;

    #[test]
    fn every_listed_fault_parses_and_changes_the_file() {
        let healthy = GpuFile::new(GpuModel::B200, 2, 0x3a1c, 0);
        for (name, argument, _) in FAULTS {
            let argument = (argument == ":PID").then_some("42");
            let fault = GpuFault::parse(name, argument).unwrap().unwrap();
            let mut file = healthy.clone();
            fault.apply(&mut file, 1).unwrap();
            assert_ne!(file, healthy, "{name}");
            assert_eq!(file.gpus[0], healthy.gpus[0], "{name} is GPU 1's alone");
            let folder = tempfile::tempdir().unwrap();
            file.save_atomic(&folder.path().join("gpus.toml")).unwrap();
        }
        assert!(GpuFault::parse("hot", None).is_none());
    }

    #[test]
    fn wrong_arguments_and_absent_parts_are_named() {
        for (name, argument, part) in [
            ("inforom", Some("1"), "takes no argument"),
            ("rows-remapped", Some("0"), "a number from 1 to 10000"),
            ("fabric-state", Some("sick"), "not_started, in_progress or failed"),
            ("gpu-process", None, "write gpu-process:PID"),
        ] {
            let error = GpuFault::parse(name, argument).unwrap().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let mut a100 = GpuFile::new(GpuModel::A100Sxm, 1, 0x3a1c, 0);
        for (fault, part) in [
            (GpuFault::RepairPending, "choose --model b200"),
            (GpuFault::FabricHealth(FabricHealth::Route), "NVLink fabric"),
        ] {
            assert!(fault.apply(&mut a100, 0).unwrap_err().to_string().contains(part));
        }
    }
}

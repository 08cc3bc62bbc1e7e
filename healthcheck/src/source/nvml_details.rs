//! What NVML says of a GPU beyond the state that every pass decides by.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, ComputeMode, EccCounter, MemoryError, RetirementCause};
use nvml_wrapper::error::NvmlError;

use super::nvml::{map, take};
use super::nvml_raw as raw;
use crate::facts::{C2c, GpuDetails, GpuProcess, GpuSurvey, Mode, NvlinkErrors, Reading, RetiredPages};

/// Field ids of nvml.h, in the numbering up to driver 580.65.
mod id {
    /// Also called `CLOCKS_EVENT_REASON_SW_POWER_CAP`; nanoseconds.
    pub const SW_POWER_CAP: u32 = 74;
    pub const REMAPPED_UNC: u32 = 143;
    pub const NVLINK_REPLAY: u32 = 161;
    pub const NVLINK_RECOVERY: u32 = 162;
    pub const NVLINK_CRC: u32 = 163;
    pub const NVLINK_SPEED: u32 = 164;
    pub const C2C_COUNT: u32 = 170;
    pub const C2C_STATUS: u32 = 171;
    pub const NVLINK5_RECOVERY: u32 = 215;
    pub const NVLINK5_EFFECTIVE_ERRORS: u32 = 219;
    pub const NVLINK5_EFFECTIVE_BER: u32 = 220;
    pub const C2C_ERROR_INTR: u32 = 231;
    pub const C2C_ERROR_REPLAY: u32 = 232;
    pub const SW_THERM_SLOWDOWN: u32 = 251;
    pub const HW_THERM_SLOWDOWN: u32 = 252;
    pub const HW_POWER_BRAKE: u32 = 253;
}

const WEEK: u64 = 7 * 24 * 3600;

/// Reads what every mode needs. `links` are the numbers of the GPU's NVLinks.
pub fn details(device: &Device<'_>, driver: &str, links: &[u32], lost: &mut bool) -> GpuDetails {
    let thermal = raw::clock_time_field(driver, id::HW_THERM_SLOWDOWN);
    let brake = raw::clock_time_field(driver, id::HW_POWER_BRAKE);
    let sw_thermal = raw::clock_time_field(driver, id::SW_THERM_SLOWDOWN);
    let mut wanted =
        vec![(thermal, 0), (brake, 0), (sw_thermal, 0), (id::SW_POWER_CAP, 0), (id::C2C_COUNT, 0)];
    for &link in links {
        wanted.extend(
            [
                id::NVLINK_REPLAY,
                id::NVLINK_RECOVERY,
                id::NVLINK_CRC,
                id::NVLINK5_RECOVERY,
                id::NVLINK5_EFFECTIVE_ERRORS,
                id::NVLINK5_EFFECTIVE_BER,
            ]
            .map(|field| (field, link)),
        );
    }
    let mut fields = Fields::read(device, &wanted, lost);
    let c2c_count = fields.take(id::C2C_COUNT, 0, lost);
    let thermal_ns = fields.take(thermal, 0, lost);
    let brake_ns = fields.take(brake, 0, lost);
    let sw_thermal_ns = fields.take(sw_thermal, 0, lost);
    let power_cap_ns = fields.take(id::SW_POWER_CAP, 0, lost);
    GpuDetails {
        architecture: map(take(device.architecture(), lost), |a| a.as_c()),
        sram_threshold_exceeded: take(raw::sram_threshold_exceeded(device), lost),
        ecc_corrected: take(device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile), lost),
        repair: take(raw::repair_flags(device), lost),
        unrepairable_memory: take(raw::unrepairable_memory(device), lost),
        fabric: take(raw::fabric(device), lost),
        nvlink_errors: nvlink_errors(&mut fields, links, lost),
        c2c: c2c(device, c2c_count, lost),
        pcie_replays: map(take(device.pcie_replay_counter(), lost), u64::from),
        pcie_lanes: take(device.current_pcie_link_width(), lost),
        pcie_generation: take(device.max_pcie_link_gen(), lost),
        clock_events: map(take(device.current_throttle_reasons(), lost), |r| r.bits()),
        thermal_ns,
        brake_ns,
        sw_thermal_ns,
        power_cap_ns,
        power_mw: take(device.power_usage(), lost),
        power_limit_mw: take(device.power_management_limit(), lost),
        default_power_limit_mw: take(device.power_management_limit_default(), lost),
        application_clock: take(device.applications_clock(Clock::Graphics), lost),
        default_application_clock: take(device.default_applications_clock(Clock::Graphics), lost),
        ecc_mode: map(take(device.is_ecc_enabled(), lost), |m| Mode {
            current: m.currently_enabled,
            pending: m.pending_enabled,
        }),
        mig_mode: map(take(device.mig_mode(), lost), |m| Mode {
            current: m.current != 0,
            pending: m.pending != 0,
        }),
        compute_mode: map(take(device.compute_mode(), lost), compute_mode),
        persistence: take(device.is_in_persistent_mode(), lost),
        processes: map(take(device.running_compute_processes(), lost), |all| {
            all.iter().map(|p| GpuProcess { pid: p.pid, ..GpuProcess::default() }).collect()
        }),
    }
}

/// Reads what only slow passes need.
pub fn survey(device: &Device<'_>, active: &[u32], lost: &mut bool) -> GpuSurvey {
    let mut wanted = vec![(id::REMAPPED_UNC, 0)];
    wanted.extend(active.iter().map(|&link| (id::NVLINK_SPEED, link)));
    let mut fields = Fields::read(device, &wanted, lost);
    let remapped_uncorrectable = fields.take(id::REMAPPED_UNC, 0, lost);
    let speeds: Vec<_> = active.iter().map(|&l| (l, fields.take(id::NVLINK_SPEED, l, lost))).collect();
    GpuSurvey {
        row_spares: take(raw::row_spares(device), lost),
        remapped_uncorrectable,
        retired_pages: retired_pages(device, lost),
        inforom_valid: match device.validate_info_rom() {
            Err(NvmlError::CorruptedInfoROM) => Reading::Value(false),
            other => map(take(other, lost), |()| true),
        },
        nvlink_speeds: collect(speeds),
        vbios: take(device.vbios_version(), lost),
        gsp: take(device.gsp_firmware_version(), lost),
        busy_percent: map(take(device.utilization_rates(), lost), |u| u.gpu),
    }
}

/// Answers to one call for several fields.
struct Fields {
    answers: BTreeMap<(u32, u32), Result<u64, NvmlError>>,
    failed: Reading<u64>,
}

impl Fields {
    fn read(device: &Device<'_>, wanted: &[(u32, u32)], lost: &mut bool) -> Fields {
        match raw::fields(device, wanted) {
            Ok(answers) => Fields { answers, failed: Reading::Unsupported },
            Err(e) => Fields { answers: BTreeMap::new(), failed: take(Err(e), lost) },
        }
    }

    /// One field. A driver that does not know the id says "invalid argument".
    fn take(&mut self, field: u32, scope: u32, lost: &mut bool) -> Reading<u64> {
        match self.answers.remove(&(field, scope)) {
            Some(Err(NvmlError::InvalidArg)) => Reading::Unsupported,
            Some(answer) => take(answer, lost),
            None => self.failed.clone(),
        }
    }
}

/// All values, or the first reason that one is missing; unsupported ones are left out.
fn collect(readings: Vec<(u32, Reading<u64>)>) -> Reading<BTreeMap<u32, u64>> {
    let mut all = BTreeMap::new();
    for (key, reading) in readings {
        match reading {
            Reading::Value(v) => {
                all.insert(key, v);
            }
            Reading::Unsupported => {}
            Reading::Unknown(why) => return Reading::Unknown(why),
            Reading::Hung(why) => return Reading::Hung(why),
        }
    }
    if all.is_empty() { Reading::Unsupported } else { Reading::Value(all) }
}

fn nvlink_errors(fields: &mut Fields, links: &[u32], lost: &mut bool) -> Reading<NvlinkErrors> {
    let mut sum = NvlinkErrors::default();
    let mut any = false;
    for &link in links {
        let mut errors = 0;
        let mut add = |field: u32, total: &mut u64| {
            if let Reading::Value(n) = fields.take(field, link, lost) {
                any = true;
                errors += n;
                *total = total.saturating_add(n);
            }
        };
        add(id::NVLINK_REPLAY, &mut sum.replay);
        // A GPU counts in the old way or in NVLink 5's, never in both.
        add(id::NVLINK_RECOVERY, &mut sum.recovery);
        add(id::NVLINK5_RECOVERY, &mut sum.recovery);
        add(id::NVLINK_CRC, &mut sum.crc);
        add(id::NVLINK5_EFFECTIVE_ERRORS, &mut sum.crc);
        if let Reading::Value(coded) = fields.take(id::NVLINK5_EFFECTIVE_BER, link, lost) {
            let rate = bit_error_rate(coded);
            if sum.worst_ber.is_none_or(|(_, worst)| rate > worst) {
                sum.worst_ber = Some((link, rate));
            }
        }
        if errors > 0 {
            sum.links.push(link);
        }
    }
    if any { Reading::Value(sum) } else { Reading::Unsupported }
}

/// nvml.h: mantissa in bits 8-11, negated power of ten in bits 0-7.
fn bit_error_rate(coded: u64) -> f64 {
    let part = |shift: u32, mask: u64| u32::try_from((coded >> shift) & mask).unwrap_or(0);
    let exponent = i32::try_from(part(0, 0xff)).unwrap_or(0);
    f64::from(part(8, 0xf)) * 10f64.powi(-exponent)
}

fn c2c(device: &Device<'_>, count: Reading<u64>, lost: &mut bool) -> Reading<C2c> {
    let count = match count {
        Reading::Value(0) | Reading::Unsupported => return Reading::Unsupported,
        Reading::Value(n) => u32::try_from(n).unwrap_or(0).min(64),
        Reading::Unknown(why) => return Reading::Unknown(why),
        Reading::Hung(why) => return Reading::Hung(why),
    };
    let ids = [id::C2C_STATUS, id::C2C_ERROR_INTR, id::C2C_ERROR_REPLAY];
    let wanted: Vec<_> = (0..count).flat_map(|link| ids.map(|field| (field, link))).collect();
    let mut fields = Fields::read(device, &wanted, lost);
    let mut c2c = C2c::default();
    for link in 0..count {
        if let Reading::Value(status) = fields.take(id::C2C_STATUS, link, lost) {
            c2c.links.insert(link, status != 0);
        }
        for field in [id::C2C_ERROR_INTR, id::C2C_ERROR_REPLAY] {
            c2c.errors += fields.take(field, link, lost).value().copied().unwrap_or(0);
        }
    }
    if c2c.links.is_empty() { Reading::Unsupported } else { Reading::Value(c2c) }
}

fn retired_pages(device: &Device<'_>, lost: &mut bool) -> Reading<RetiredPages> {
    let read = || -> Result<RetiredPages, NvmlError> {
        let single = device.retired_pages(RetirementCause::MultipleSingleBitEccErrors)?;
        let double = device.retired_pages(RetirementCause::DoubleBitEccError)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros());
        // The driver gives microseconds since 1970.
        let recent = |t: u64| t > 0 && now.saturating_sub(u128::from(t)) < u128::from(WEEK) * 1_000_000;
        Ok(RetiredPages {
            single_bit: single.len() as u64,
            double_bit: double.len() as u64,
            double_bit_last_week: double.iter().filter(|p| recent(p.timestamp)).count() as u64,
            pending: device.are_pages_pending_retired()?,
        })
    };
    take(read(), lost)
}

fn compute_mode(mode: ComputeMode) -> String {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread => "exclusive_process",
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_error_rates_are_decoded_as_nvml_h_says() {
        assert!((bit_error_rate(0x307) - 3e-7).abs() < 1e-12);
        assert!((bit_error_rate(0x10c) - 1e-12).abs() < 1e-18);
        assert!(bit_error_rate(0xfff) < 1e-200, "no error seen");
    }

    #[test]
    fn unsupported_links_are_left_out_and_a_failure_is_told() {
        let value = |n| Reading::Value(n);
        assert_eq!(collect(vec![(0, value(5)), (1, Reading::Unsupported)]), Reading::Value([(0, 5)].into()));
        assert_eq!(collect(vec![(1, Reading::Unsupported)]), Reading::Unsupported);
        assert!(matches!(collect(vec![(0, Reading::Unknown("x".into()))]), Reading::Unknown(_)));
    }
}

//! What nvml-wrapper lacks, called through the bindings. With [`crate::sys`] and the CUDA boundary the only file
//! of this crate that holds `unsafe`. A function that the installed library lacks is
//! [`NvmlError::FunctionNotFound`], which means unsupported.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccSramErrorStatus_v1_t, nvmlFieldValue_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfo_v3_t, nvmlRepairStatus_v1_t, nvmlReturn_t, nvmlRowRemapperHistogramValues_t,
    nvmlValue_t,
};

use crate::facts::{Fabric, RepairFlags, RowSpares};

type Answer<T> = Result<T, NvmlError>;
type Fill<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t;

/// nvml.h of driver 590, newer than the bindings.
#[repr(C)]
struct UnrepairableMemory {
    version: c_uint,
    unrepairable: c_uint,
}

/// `NVML_STRUCT_VERSION`: what a versioned structure says of itself.
fn version_of<T>(version: u32) -> c_uint {
    u32::try_from(size_of::<T>()).unwrap_or(0) | version << 24
}

/// Calls a function of the library that fills in one structure.
fn fill<T, E>(device: &Device<'_>, call: &Result<Fill<T>, E>, mut value: T) -> Answer<T> {
    let call = call.as_ref().map_err(|_| NvmlError::FunctionNotFound)?;
    // SAFETY: the symbol is of the library that `device` keeps loaded and initialised, with the signature that the
    // bindings give it; the handle is the device's; `value` is exclusively ours and of the version it names.
    nvml_try(unsafe { call(device.handle(), &raw mut value) })?;
    Ok(value)
}

/// Whether the SRAM error threshold of NVIDIA's replacement rule is exceeded.
pub fn sram_threshold_exceeded(device: &Device<'_>) -> Answer<bool> {
    let empty = nvmlEccSramErrorStatus_v1_t {
        version: version_of::<nvmlEccSramErrorStatus_v1_t>(1),
        aggregateUncParity: 0,
        aggregateUncSecDed: 0,
        aggregateCor: 0,
        volatileUncParity: 0,
        volatileUncSecDed: 0,
        volatileCor: 0,
        aggregateUncBucketL2: 0,
        aggregateUncBucketSm: 0,
        aggregateUncBucketPcie: 0,
        aggregateUncBucketMcu: 0,
        aggregateUncBucketOther: 0,
        bThresholdExceeded: 0,
    };
    let call = &device.nvml().lib().nvmlDeviceGetSramEccErrorStatus;
    Ok(fill(device, call, empty)?.bThresholdExceeded != 0)
}

/// Memory banks by the spare rows they have left.
pub fn row_spares(device: &Device<'_>) -> Answer<RowSpares> {
    let empty = nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    let h = fill(device, &device.nvml().lib().nvmlDeviceGetRowRemapperHistogram, empty)?;
    Ok(RowSpares { max: h.max, high: h.high, partial: h.partial, low: h.low, none: h.none })
}

/// Repairs that wait for a reset (Blackwell and later).
pub fn repair_flags(device: &Device<'_>) -> Answer<RepairFlags> {
    let empty = nvmlRepairStatus_v1_t {
        version: version_of::<nvmlRepairStatus_v1_t>(1),
        bChannelRepairPending: 0,
        bTpcRepairPending: 0,
    };
    let r = fill(device, &device.nvml().lib().nvmlDeviceGetRepairStatus, empty)?;
    Ok(RepairFlags { channel_pending: r.bChannelRepairPending != 0, tpc_pending: r.bTpcRepairPending != 0 })
}

/// Memory that cannot be repaired was found (drivers from 590 on tell).
pub fn unrepairable_memory(device: &Device<'_>) -> Answer<bool> {
    let empty = UnrepairableMemory { version: version_of::<UnrepairableMemory>(1), unrepairable: 0 };
    // SAFETY: the symbol, where a library has it, has the signature of nvml.h of driver 590.
    let call = unsafe {
        device
            .nvml()
            .lib()
            .__library
            .get::<Fill<UnrepairableMemory>>(b"nvmlDeviceGetUnrepairableMemoryFlag_v1\0")
    };
    Ok(fill(device, &call.map(|symbol| *symbol), empty)?.unrepairable != 0)
}

/// Registration with the NVLink fabric. The health mask came with version 2 of the call; earlier drivers say less.
pub fn fabric(device: &Device<'_>) -> Answer<Fabric> {
    let lib = device.nvml().lib();
    let three = nvmlGpuFabricInfo_v3_t {
        version: version_of::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    match fill(device, &lib.nvmlDeviceGetGpuFabricInfoV, three) {
        Ok(i) => return Ok(plain_fabric(i.state, i.status, i.cliqueId, i.clusterUuid, Some(i.healthMask))),
        Err(e) if !is_older(&e) => return Err(e),
        Err(_) => {}
    }
    if let Ok(i) = fabric_v2(device) {
        return Ok(plain_fabric(i.state, i.status, i.cliqueId, i.clusterUuid, Some(i.healthMask)));
    }
    let one = nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    let i = fill(device, &lib.nvmlDeviceGetGpuFabricInfo, one)?;
    Ok(plain_fabric(i.state, i.status, i.cliqueId, i.clusterUuid, None))
}

/// Version 2 is the front part of version 3 and goes through the same symbol.
fn fabric_v2(device: &Device<'_>) -> Answer<nvmlGpuFabricInfo_v2_t> {
    // SAFETY: as in `unrepairable_memory`; the structure names its own version and size.
    let call = unsafe {
        device.nvml().lib().__library.get::<Fill<nvmlGpuFabricInfo_v2_t>>(b"nvmlDeviceGetGpuFabricInfoV\0")
    };
    let two = nvmlGpuFabricInfo_v2_t {
        version: version_of::<nvmlGpuFabricInfo_v2_t>(2),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
    };
    fill(device, &call.map(|symbol| *symbol), two)
}

/// The library does not know this version of a call, or not the call.
fn is_older(error: &NvmlError) -> bool {
    const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    matches!(error, NvmlError::FunctionNotFound | NvmlError::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH))
}

fn plain_fabric(state: u8, status: u32, clique: u32, cluster: [u8; 16], mask: Option<u32>) -> Fabric {
    let cluster: String = cluster.iter().map(|b| format!("{b:02x}")).collect();
    Fabric { state: state.into(), status, clique, cluster, health_mask: mask }
}

/// Field values by `(id, scope)`, in one call. The scope is the link for most fields about links. Ids from 251
/// on were renumbered in driver 580.82 and are the caller's to choose; see [`clock_time_field`].
pub fn fields(device: &Device<'_>, wanted: &[(u32, u32)]) -> Answer<BTreeMap<(u32, u32), Answer<u64>>> {
    let call = &device.nvml().lib().nvmlDeviceGetFieldValues;
    let call = call.as_ref().map_err(|_| NvmlError::FunctionNotFound)?;
    let mut values: Vec<nvmlFieldValue_t> = wanted
        .iter()
        .map(|&(field, scope)| nvmlFieldValue_t {
            fieldId: field,
            scopeId: scope,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            nvmlReturn: 0,
            value: nvmlValue_t { ullVal: 0 },
        })
        .collect();
    let count = i32::try_from(values.len()).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: as in `fill`; `values` has `count` elements and lives through the call.
    nvml_try(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    Ok(values.iter().map(|v| ((v.fieldId, v.scopeId), number(v))).collect())
}

fn number(v: &nvmlFieldValue_t) -> Answer<u64> {
    nvml_try(v.nvmlReturn)?;
    // SAFETY: the union was all zero before the call and the library wrote the member that valueType names; every
    // member is a plain number, so any bytes are a value of it.
    unsafe {
        match v.valueType {
            1 => Ok(v.value.uiVal.into()),
            2 | 3 => Ok(v.value.ullVal),
            4 => Ok(u64::try_from(v.value.sllVal).unwrap_or(0)),
            5 => Ok(u64::try_from(v.value.siVal).unwrap_or(0)),
            6 => Ok(v.value.usVal.into()),
            other => Err(NvmlError::UnexpectedVariant(other)),
        }
    }
}

/// Id of a clock-event time field under this driver. `before` is its id up to driver 580.65; 580.82 moved
/// 251-255 up by 18.
#[must_use]
pub fn clock_time_field(driver_version: &str, before: u32) -> u32 {
    let mut parts = driver_version.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    let release = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if release >= (580, 82) { before + 18 } else { before }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_time_fields_follow_the_driver() {
        for (driver, id) in [
            ("535.261.03", 252),
            ("570.172.08", 252),
            ("580.65.06", 252),
            ("580.82.07", 270),
            ("590.48.01", 270),
        ] {
            assert_eq!(clock_time_field(driver, 252), id, "{driver}");
        }
    }

    #[test]
    fn versions_are_those_of_nvml_h() {
        assert_eq!(version_of::<nvmlRepairStatus_v1_t>(1), 0x0100_000c);
        assert_eq!(version_of::<UnrepairableMemory>(1), 0x0100_0008);
        assert_eq!(version_of::<nvmlGpuFabricInfo_v3_t>(3) >> 24, 3);
    }
}

//! A simulated `libnvidia-ml.so.1`: NVIDIA's management library, without NVIDIA hardware.
//!
//! The shared library that this crate builds (`libnvidia_ml_sim.so`) has the C interface of the real one, as
//! nvml-wrapper, nvidia-ml-py and other clients call it. Its GPUs come from a TOML file; programs run unchanged.
//!
//! # Where the GPU file is
//!
//! 1. the file that the environment variable `CLUSTERMAX_SIM_GPUS` names, if it is set when NVML is initialised;
//! 2. else `gpus.toml` beside the library, in the folder it was loaded from. [`install`] puts the library into a
//!    node's folder, so a program with a fixed environment needs only the path of the library.
//!
//! # Changing GPUs while programs run
//!
//! Every call looks whether the file is another than last time (inode, size, times of change) and reads it again
//! if so. Write it in one step, as [`GpuFile::save_atomic`] does, or with an editor that renames. A file that
//! cannot be read or understood is told on stderr, once, and the last good one stays in use; without any good one
//! `nvmlInit` returns `NVML_ERROR_UNKNOWN`.
//!
//! # The file
//!
//! All keys, with units and defaults, are the fields of [`GpuFile`] and [`model::Gpu`]. In short:
//!
//! ```
//! # let text = r#"
//! driver_version = "570.172.08"
//!
//! [hang]                                # a call that does not return
//! function = "nvmlDeviceGetTemperature" # or "*"
//! gpu = 1                               # position in this file; absent: every call
//! seconds = 2.5                         # or: forever = true
//!
//! [missing]                             # these return NVML_ERROR_FUNCTION_NOT_FOUND
//! functions = ["nvmlDeviceGetGpuFabricInfoV"]
//!
//! [errors]                              # forced return codes, for every GPU
//! nvmlDeviceGetPowerUsage = "UNKNOWN"
//!
//! [[gpus]]
//! uuid = "GPU-6bd6d1c3-3a1c-4002-8000-000000020000"
//! pci_address = "3a1c:18:00.0"
//! minor_number = 0
//! lost = true                           # NVML_ERROR_GPU_IS_LOST for everything but count and handle by index
//!
//! [[gpus]]
//! uuid = "GPU-70d6daf1-3a1c-4002-8001-000000020001"
//! pci_address = "3a1c:2a:00.0"
//! minor_number = 1
//! recovery_action = "gpu_reset"
//!
//! [gpus.remapped_rows]
//! failure = true
//!
//! [gpus.nvlink]
//! down = [3, 4]
//!
//! [gpus.errors]                         # forced return codes, for this GPU
//! nvmlDeviceGetUtilizationRates = "NOT_SUPPORTED"
//! # "#;
//! # let file = nvidia_ml_sim::GpuFile::parse(text, std::path::Path::new("gpus.toml")).unwrap();
//! # assert!(file.gpus[0].lost && file.gpus[1].remapped_rows.as_ref().unwrap().failure);
//! ```
//!
//! A function's name without its version means every version ([`model::names_function`]).
//!
//! # What is not like the real library
//!
//! * `dlsym` finds a function in `[missing]` all the same; only its calls fail. [`install`] with `lacking` makes a
//!   library that really has no such symbol.
//! * Nothing can be set: functions that change a GPU return `NVML_ERROR_NOT_SUPPORTED`, as do vGPU, GPM, fans,
//!   confidential computing and units. Functions of later drivers than 590 return `NVML_ERROR_FUNCTION_NOT_FOUND`.
//! * No events come. MIG mode can be on, but there are no instances.
//! * Counters stand still until the file changes.
//! * A call that hangs sleeps; it can be killed, which a call stuck in a driver cannot.

#[cfg(not(target_os = "linux"))]
compile_error!("the simulated NVML library is for Linux only");

mod abi;
mod answer;
mod ffi;
mod install;
pub mod model;
mod preset;
mod session;

pub use install::{InstallError, LIBRARY_NAME, install};
pub use model::{GpuFile, GpuModel, ModelError};
pub use session::{GPUS_ENV, GPUS_FILE};

//! Simulated NVML: see `model` for the GPU file.

pub mod model;
mod preset;
pub use model::{GpuFile, GpuModel};

//! A simulated node for one test: a folder with its own copy of the library and its GPU file.
#![allow(dead_code)] // Each test program uses its own part.
#![allow(clippy::unwrap_used)] // Clippy takes helpers of tests for ordinary code.

use std::fs;
use std::path::{Path, PathBuf};

use nvidia_ml_sim::{GPUS_FILE, GpuFile, LIBRARY_NAME};
use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// The library that cargo built beside this test program.
pub fn built_library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libnvidia_ml_sim.so");
    assert!(path.exists(), "cargo did not build {}; its crate-type must have cdylib", path.display());
    path
}

/// Removed at the end of the test.
pub struct Node {
    folder: TempDir,
}

impl Node {
    /// A node with these GPUs. The library is a copy: of two links to one file a process would load only one.
    pub fn new(file: &GpuFile) -> Node {
        let node = Node::without_file();
        node.write(file);
        node
    }

    pub fn without_file() -> Node {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(built_library(), folder.path().join(LIBRARY_NAME)).unwrap();
        Node { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn library(&self) -> PathBuf {
        self.path().join(LIBRARY_NAME)
    }

    pub fn gpus(&self) -> PathBuf {
        self.path().join(GPUS_FILE)
    }

    pub fn write(&self, file: &GpuFile) {
        file.save_atomic(&self.gpus()).unwrap();
    }

    /// Changes one thing in the file, as `clustermax-sim inject` does.
    pub fn change(&self, change: impl FnOnce(&mut GpuFile)) {
        let mut file = GpuFile::load(&self.gpus()).unwrap();
        change(&mut file);
        self.write(&file);
    }

    pub fn init(&self) -> Result<Nvml, nvml_wrapper::error::NvmlError> {
        Nvml::builder().lib_path(self.library().as_os_str()).init()
    }

    pub fn nvml(&self) -> Nvml {
        self.init().unwrap()
    }
}

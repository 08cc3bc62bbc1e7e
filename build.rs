//! The one build script of the crates that touch Slurm.
//!
//! It finds Slurm's headers, runs bindgen over the few items each crate needs and tells the crate
//! which release it is being built for:
//!
//! * `SLURM_INCLUDE_DIR`: folder that holds `slurm/slurm.h` (default: the compiler's search path).
//! * `CLUSTERMAX_SLURM_VERSION`: `MAJOR.MINOR[.MICRO]`, overrides the header's
//!   `SLURM_VERSION_NUMBER`. SPANK's enums are the same from 22.05 to 26.05, so one header serves
//!   to build the plugin for any of these releases.
//!
//! Output: `$OUT_DIR/bindings.rs`, and `CLUSTERMAX_SLURM_VERSION_NUMBER` / `CLUSTERMAX_SLURM_RELEASE`
//! in the crate's compile-time environment.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What bindgen keeps for one crate.
struct Wanted {
    header: &'static str,
    functions: &'static [&'static str],
    types: &'static [&'static str],
    vars: &'static [&'static str],
    /// Name of a struct that looks the functions up in a library at run time; none: they are declared `extern`.
    loader: Option<&'static str>,
}

/// `clustermax-drain` talks to slurmctld through libslurm. It opens the library itself: linked against it, the
/// program would not even start once Slurm is upgraded, and could neither say so nor go through scontrol.
const DRAIN: Wanted = Wanted {
    header: "#include <slurm/slurm.h>\n#include <slurm/slurm_errno.h>\n#include <slurm/slurm_version.h>\n",
    functions: &[
        "slurm_init",
        "slurm_fini",
        "slurm_api_version",
        "slurm_strerror",
        "slurm_init_update_node_msg",
        "slurm_update_node",
        "slurm_load_node",
        "slurm_load_node_single",
        "slurm_free_node_info_msg",
        "slurm_load_partitions",
        "slurm_free_partition_info_msg",
        "slurm_load_job",
        "slurm_free_job_info_msg",
        "slurm_init_job_desc_msg",
        "slurm_update_job2",
        "slurm_free_job_array_resp",
        "slurm_notify_job",
    ],
    types: &["node_states", "job_states", "slurm_err_t"],
    vars: &["NODE_STATE_.*", "NODE_RESUME", "SHOW_.*", "SLURM_VERSION_NUMBER", "NO_VAL"],
    loader: Some("Libslurm"),
};

/// The plugin looks its functions up in the host process; the declarations check its own types.
const SPANK: Wanted = Wanted {
    header: "#include <slurm/spank.h>\n#include <slurm/slurm_version.h>\n",
    functions: &[
        "spank_context",
        "spank_option_register",
        "spank_get_item",
        "spank_getenv",
        "slurm_spank_log",
        "slurm_error",
    ],
    types: &["spank_t", "spank_item", "spank_context", "spank_option"],
    vars: &["SLURM_VERSION_NUMBER"],
    loader: None,
};

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=../build.rs");
    println!("cargo:rerun-if-env-changed=SLURM_INCLUDE_DIR");
    println!("cargo:rerun-if-env-changed=CLUSTERMAX_SLURM_VERSION");
    match generate() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // One sentence for whoever builds: cargo prints a build script's stderr on failure.
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Links the compiler's support library into programs instead of loading `libgcc_s.so` each time one starts: that is a seventh of
/// what a small program costs, and Slurm starts two of ours for each job. Without the static library nothing changes.
fn link_libgcc(out: &Path) -> Result<(), String> {
    let found = Command::new(env::var_os("CC").unwrap_or("cc".into()))
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .map(|o| PathBuf::from(String::from_utf8_lossy(&o.stdout).trim()));
    // A compiler that has no such file repeats its name.
    if !found.is_ok_and(|path| path.is_absolute() && path.exists()) {
        return Ok(());
    }
    // The standard library asks for libgcc_s by name; this is what the linker finds first under it.
    let folder = out.join("libgcc");
    let script = folder.join("libgcc_s.so");
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&script, "INPUT(-l:libgcc_eh.a -l:libgcc.a)\n"));
    written.map_err(|e| format!("{} cannot be written: {e}", script.display()))?;
    println!("cargo:rustc-link-search=native={}", folder.display());
    Ok(())
}

fn generate() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let package = env::var("CARGO_PKG_NAME").map_err(|e| e.to_string())?;
    // Not the plugin: it lives in a process that has the library already.
    if package == "clustermax-prolog-epilog" {
        link_libgcc(&out)?;
    }
    let wanted = match package.as_str() {
        "spank-clustermax" => SPANK,
        _ => DRAIN,
    };
    let header = out.join("wrapper.h");
    std::fs::write(&header, wanted.header).map_err(|e| format!("cannot write {}: {e}", header.display()))?;
    let bindings_path = out.join("bindings.rs");
    run_bindgen(&header, &wanted, &bindings_path)?;

    let text = std::fs::read_to_string(&bindings_path)
        .map_err(|e| format!("cannot read {}: {e}", bindings_path.display()))?;
    let header_version = version_in(&text).ok_or(
        "slurm/slurm_version.h has no SLURM_VERSION_NUMBER; install Slurm's development package (libslurm-dev, slurm-devel)",
    )?;
    let version = match env::var("CLUSTERMAX_SLURM_VERSION") {
        Ok(v) if !v.is_empty() => parse_release(&v).ok_or_else(|| {
            format!("CLUSTERMAX_SLURM_VERSION={v} is not MAJOR.MINOR[.MICRO], for example 24.11")
        })?,
        _ => header_version,
    };
    println!("cargo:rustc-env=CLUSTERMAX_SLURM_VERSION_NUMBER={version}");
    println!("cargo:rustc-env=CLUSTERMAX_SLURM_RELEASE={}.{:02}", version >> 16, (version >> 8) & 0xff);
    if wanted.loader.is_some() {
        // Structures are laid out as in the header, whatever release the number above claims.
        println!("cargo:rustc-env=CLUSTERMAX_SLURM_HEADER_NUMBER={header_version}");
        // 23.02 knows when a node is to be resumed by itself.
        println!("cargo:rustc-check-cfg=cfg(slurm_resume_after)");
        if header_version >= (23 << 16) | (2 << 8) {
            println!("cargo:rustc-cfg=slurm_resume_after");
        }
        // 26.05 names jobs by `slurm_step_id_t`.
        println!("cargo:rustc-check-cfg=cfg(slurm_jobs_by_step_id)");
        if header_version >= (26 << 16) | (5 << 8) {
            println!("cargo:rustc-cfg=slurm_jobs_by_step_id");
        }
    }
    if package == "spank-clustermax" {
        // 25.05 reads `slurm_spank_init_failure_mode` from the plugin.
        println!("cargo:rustc-check-cfg=cfg(slurm_init_failure_mode)");
        if version >= (25 << 16) | (5 << 8) {
            println!("cargo:rustc-cfg=slurm_init_failure_mode");
        }
        // Slurm dlcloses plugins; unloading Rust's runtime with registered TLS destructors crashes.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    Ok(())
}

fn run_bindgen(header: &Path, wanted: &Wanted, out: &Path) -> Result<(), String> {
    let mut builder = bindgen::Builder::default()
        .header(header.display().to_string())
        // NODE_STATE_DRAIN and friends are SLURM_BIT(n): without the fallback bindgen drops them silently.
        .clang_macro_fallback()
        .clang_macro_fallback_build_dir(out.parent().unwrap_or(Path::new(".")))
        .layout_tests(false)
        .generate_comments(false)
        .derive_debug(false)
        .rust_edition(bindgen::RustEdition::Edition2024);
    if let Some(dir) = env::var_os("SLURM_INCLUDE_DIR") {
        builder = builder.clang_arg(format!("-I{}", Path::new(&dir).display()));
    }
    if let Some(loader) = wanted.loader {
        builder = builder.dynamic_library_name(loader).dynamic_link_require_all(true);
    }
    for f in wanted.functions {
        builder = builder.allowlist_function(f);
    }
    for t in wanted.types {
        builder = builder.allowlist_type(t);
    }
    for v in wanted.vars {
        builder = builder.allowlist_var(v);
    }
    builder
        .generate()
        .map_err(|e| format!("bindgen could not read Slurm's headers (install libslurm-dev and libclang-dev, or set SLURM_INCLUDE_DIR): {e}"))?
        .write_to_file(out)
        .map_err(|e| format!("cannot write {}: {e}", out.display()))
}

/// `pub const SLURM_VERSION_NUMBER: u32 = N;` in bindgen's output.
fn version_in(text: &str) -> Option<u32> {
    let line = text.split("SLURM_VERSION_NUMBER:").nth(1)?;
    line.split('=').nth(1)?.split(';').next()?.trim().parse().ok()
}

fn parse_release(text: &str) -> Option<u32> {
    let mut parts = text.split('.').map(str::parse::<u32>);
    let major = parts.next()?.ok()?;
    let minor = parts.next()?.ok()?;
    let micro = parts.next().transpose().ok()?.unwrap_or(0);
    (major < 256 && minor < 256 && micro < 256 && parts.next().is_none())
        .then_some((major << 16) | (minor << 8) | micro)
}

//! NVMe's own health page (SMART / Health Information, log page 02h of the NVM Express base specification).
//!
//! Asked by an admin command, which a dying controller may answer late or never: a child of its own, so that its hang hides
//! nothing else. The command's own limit stays the driver's: a shorter one would make the driver reset the controller.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::answer;
use crate::facts::{NvmeSmart, Reading};
use crate::sys;

/// Bytes of the page.
pub const PAGE: usize = 512;

/// Body of the child: `dev` is where device nodes are, `sysfs` names the controllers.
pub fn child(dev: &Path, sysfs: &Path) {
    answer(&Reading::Value(read(dev, sysfs)));
}

/// Pages by controller.
#[must_use]
pub fn read(dev: &Path, sysfs: &Path) -> BTreeMap<String, Reading<NvmeSmart>> {
    let entries = std::fs::read_dir(sysfs.join("class/nvme")).into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_name().into_string().ok())
        .map(|name| {
            let page = one(&dev.join(&name));
            (name, page)
        })
        .collect()
}

/// The page of one controller. A regular file in the device's place holds the page itself: containers, simulation.
fn one(path: &Path) -> Reading<NvmeSmart> {
    let mut file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Reading::Unsupported,
        Err(e) => return Reading::Unknown(format!("{} cannot be opened: {e}", path.display())),
    };
    let unread = |e: std::io::Error| Reading::Unknown(format!("{} cannot be asked: {e}", path.display()));
    let kind = match file.metadata() {
        Ok(meta) => meta.file_type(),
        Err(e) => return unread(e),
    };
    let mut page = [0u8; PAGE];
    if kind.is_char_device() {
        match sys::nvme_health_page(&file, &mut page) {
            Ok(()) => {}
            // Not an NVMe controller, or one that has no such page.
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => return Reading::Unsupported,
            Err(e) => return unread(e),
        }
    } else if let Err(e) = file.read_exact(&mut page) {
        return unread(e);
    }
    parse(&page)
}

/// Reads the page.
#[must_use]
pub fn parse(page: &[u8]) -> Reading<NvmeSmart> {
    let byte = |at: usize| page.get(at).copied();
    let media = page.get(160..168).and_then(|b| b.first_chunk::<8>()).map(|b| u64::from_le_bytes(*b));
    let (Some(critical_warning), Some(spare), Some(threshold), Some(used), Some(media_errors)) =
        (byte(0), byte(3), byte(4), byte(5), media)
    else {
        return Reading::Unknown(format!("its health page holds {} bytes", page.len()));
    };
    // A controller that went away answers with all ones.
    if page.iter().all(|b| *b == 0xff) {
        return Reading::Unknown("its health page reads all ones".into());
    }
    Reading::Value(NvmeSmart {
        critical_warning,
        spare_percent: spare,
        spare_threshold: threshold,
        used_percent: used,
        media_errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> [u8; PAGE] {
        let mut page = [0u8; PAGE];
        (page[0], page[3], page[4], page[5], page[160]) = (0b100, 97, 10, 34, 7);
        page
    }

    #[test]
    fn the_page_is_read() {
        let want = NvmeSmart {
            critical_warning: 4,
            spare_percent: 97,
            spare_threshold: 10,
            used_percent: 34,
            media_errors: 7,
        };
        assert_eq!(parse(&page()), Reading::Value(want));
        for bad in [&page()[..100], &[0xff; PAGE][..], &[]] {
            assert!(matches!(parse(bad), Reading::Unknown(_)));
        }
    }

    #[test]
    fn controllers_without_a_node_are_unsupported_and_a_short_page_unknown() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["nvme0", "nvme1", "nvme2"] {
            std::fs::create_dir_all(dir.path().join("sys/class/nvme").join(name)).unwrap();
        }
        let dev = dir.path().join("dev");
        std::fs::create_dir(&dev).unwrap();
        std::fs::write(dev.join("nvme1"), page()).unwrap();
        std::fs::write(dev.join("nvme2"), [0u8; 9]).unwrap();
        let all = read(&dev, &dir.path().join("sys"));
        assert_eq!(all["nvme0"], Reading::Unsupported);
        assert!(matches!(&all["nvme1"], Reading::Value(s) if s.critical_warning == 4));
        assert!(matches!(&all["nvme2"], Reading::Unknown(_)));
        // A device that is no NVMe controller.
        std::os::unix::fs::symlink("/dev/null", dev.join("nvme0")).unwrap();
        assert_eq!(read(&dev, &dir.path().join("sys"))["nvme0"], Reading::Unsupported);
    }
}

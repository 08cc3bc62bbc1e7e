//! `clustermax bundle` and `clustermax verify`: a whole bundle verifies, and every way to tamper with one is named.

#![allow(clippy::unwrap_used, reason = "in a test a failed step is the failure")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

const RUN: &str = "20261130T205000Z-7";

fn clustermax(args: &[&Path]) -> (i32, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_clustermax")).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap(), text)
}

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// A small run with one measurement and its raw file, scored.
fn scored() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let run = home.path().join(RUN);
    let raw = r#"{"schema":"clustermax-audit/1","tool":"clustermax 0.1.0","node":"n1","started":"2026-11-30T20:50:00Z","seconds":0.1,"items":[
{"stage":"inventory","metric":"gpu_count","value":8,"state":"measured","subject":{"node":"n1"},"verdict":"INFO","observed":"8 GPUs"}]}"#;
    let say = |args: &[&str]| {
        let args: Vec<&Path> = args.iter().copied().map(Path::new).collect();
        let (code, text) = clustermax(&args);
        assert_eq!(code, 0, "{text}");
    };
    let dir = run.to_str().unwrap();
    let started = ["--started", "2026-11-30T20:50:00Z", "--job", "7"];
    let init =
        ["collect", "init", dir, "--run", RUN, "--cluster", "alpha", "--nodes", "n1", "--hardware", "gpu"];
    say(&[&init[..], &started[..]].concat());
    fs::create_dir_all(run.join("raw/inventory")).unwrap();
    fs::write(run.join("raw/inventory/n1.json"), raw).unwrap();
    say(&[&["collect", "inventory", dir][..], &started[..]].concat());
    let (code, text) = clustermax(&[path("score"), &run]);
    assert!(code <= 1, "{text}");
    (home, run)
}

fn bundled() -> (TempDir, PathBuf, PathBuf) {
    let (home, run) = scored();
    let file = home.path().join("b.tar.gz");
    let (code, text) = clustermax(&[path("bundle"), &run, path("--out"), &file]);
    assert_eq!(code, 0, "{text}");
    (home, run, file)
}

/// The entries of a bundle: name, content.
fn entries(file: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(file).unwrap()));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (name, content)
    };
    archive.entries().unwrap().map(read).collect()
}

/// Writes an archive that `tar::Builder`'s own checks would refuse: names as they are.
fn pack(file: &Path, entries: &[(String, Vec<u8>)], link: Option<&str>) {
    let gzip = flate2::write::GzEncoder::new(fs::File::create(file).unwrap(), flate2::Compression::fast());
    let mut archive = tar::Builder::new(gzip);
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        let bytes = header.as_old_mut();
        bytes.name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        if link == Some(name) {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_link_name("/etc/passwd").unwrap();
            header.set_size(0);
        }
        header.set_cksum();
        archive.append(&header, if link == Some(name) { &[][..] } else { content }).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap();
}

#[test]
fn a_bundle_verifies_and_is_the_same_bytes_each_time() {
    let (home, run, file) = bundled();
    let (code, text) = clustermax(&[path("verify"), &file]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("bundle of run {RUN} on cluster alpha")), "{text}");
    assert!(text.contains(&sha256(&fs::read(&file).unwrap())), "{text}");

    let again = home.path().join("again.tar.gz");
    assert_eq!(clustermax(&[path("bundle"), &run, path("--out"), &again]).0, 0);
    assert_eq!(fs::read(&file).unwrap(), fs::read(&again).unwrap());

    let kept = home.path().join("kept");
    assert_eq!(clustermax(&[path("verify"), &file, path("--unpack"), &kept]).0, 0);
    assert_eq!(fs::read(kept.join("score.json")).unwrap(), fs::read(run.join("score.json")).unwrap());
    assert_eq!(clustermax(&[path("verify"), &kept]).0, 0, "a results folder verifies as well");
}

/// Records name their raw files only: a log, a report or a file more was no difference in a folder.
#[test]
fn a_bundle_that_tar_unpacked_is_compared_with_its_manifest() {
    let (home, _run, file) = bundled();
    let here = home.path().join("tar");
    fs::create_dir(&here).unwrap();
    let archive = flate2::read::GzDecoder::new(fs::File::open(&file).unwrap());
    tar::Archive::new(archive).unpack(&here).unwrap();
    let folder = here.join(RUN);
    let verify = || clustermax(&[path("verify"), &folder]);
    let (code, text) = verify();
    assert!(code == 0 && text.contains("verified: every file, "), "{text}");
    let report = fs::read_to_string(folder.join("report.txt")).unwrap();
    for (file, content, said) in [
        ("report.txt", report.replacen('e', "a", 1), "report.txt has SHA-256 "),
        ("report.txt", report.clone() + "!", "report.txt has "),
        ("more.txt", String::new(), "more.txt is not named in MANIFEST.json"),
    ] {
        fs::write(folder.join(file), content).unwrap();
        let (code, text) = verify();
        assert!(code == 1 && text.contains(&format!("differs: {said}")), "{text}");
    }
    fs::remove_file(folder.join("more.txt")).unwrap();
    fs::remove_file(folder.join("report.txt")).unwrap();
    assert!(verify().1.contains("differs: report.txt is named in MANIFEST.json and missing"));
    // Without the list nothing is claimed of files that no record names.
    fs::remove_file(folder.join("MANIFEST.json")).unwrap();
    let (code, text) = verify();
    assert!(code == 0 && text.contains("verified: every record's raw file, "), "{text}");
}

#[test]
fn without_out_the_bundle_lies_beside_the_results_folder() {
    let (home, run) = scored();
    let (code, text) = clustermax(&[path("bundle"), &run]);
    assert_eq!(code, 0, "{text}");
    assert!(home.path().join(format!("{RUN}.clustermax.tar.gz")).is_file(), "{text}");
}

#[test]
fn tampering_with_an_archive_is_named() {
    let (home, _, file) = bundled();
    let whole = entries(&file);
    let named = |end: &str| whole.iter().position(|(name, _)| name.ends_with(end)).unwrap();
    let changed = home.path().join("changed.tar.gz");
    let verify = |entries: &[(String, Vec<u8>)], link: Option<&str>| {
        pack(&changed, entries, link);
        clustermax(&[path("verify"), &changed])
    };
    assert_eq!(verify(&whole, None).0, 0, "packing again alone changes nothing");

    let mut flipped = whole.clone();
    flipped[named("n1.json")].1[12] ^= 1;
    let mut missing = whole.clone();
    missing.remove(named("n1.json"));
    let mut extra = whole.clone();
    extra.push((format!("{RUN}/raw/extra.txt"), b"x".to_vec()));
    let mut twice = whole.clone();
    twice.push(whole[named("run.json")].clone());
    let mut longer = whole.clone();
    longer[named("records.jsonl")].1.push(b'\n');
    let mut outside = whole.clone();
    outside[0].1 = String::from_utf8(whole[0].1.clone()).unwrap().replace("run.json", "../evil").into_bytes();
    let at = named("run.json");
    outside[at].0 = format!("{RUN}/../evil");
    for (entries, expected) in [
        (&flipped, "raw/inventory/n1.json has SHA-256"),
        (&missing, "raw/inventory/n1.json is named in MANIFEST.json and missing"),
        (&extra, "raw/extra.txt is not named in MANIFEST.json"),
        (&twice, "run.json is there twice"),
        (&longer, "records.jsonl has "),
        (&outside, "would lie outside the folder"),
    ] {
        let (code, text) = verify(entries, None);
        assert_eq!(code, 1, "{expected}: {text}");
        assert!(text.contains(expected), "{expected}: {text}");
        assert!(!text.contains("verified:"), "{text}");
    }
    assert!(!home.path().join("evil").exists());
    let link = format!("{RUN}/raw/inventory/n1.json");
    let (code, text) = verify(&whole, Some(&link));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("is not a plain file"), "{text}");
}

/// A manifest may promise what it likes: what the archive holds beyond it is never written, and a file that claims more than
/// follows is an archive that was cut.
#[test]
fn a_file_that_grew_or_claims_to_be_huge_is_named_and_not_unpacked() {
    let (home, _, file) = bundled();
    let changed = home.path().join("changed.tar.gz");
    let whole = entries(&file);
    let at = whole.iter().position(|(name, _)| name.ends_with("n1.json")).unwrap();
    // 64 MiB of zeros are 64 KiB packed: only the manifest's few hundred bytes are believed.
    let mut grown = whole.clone();
    grown[at].1 = vec![0; 64 << 20];
    pack(&changed, &grown, None);
    assert!(fs::metadata(&changed).unwrap().len() < 1 << 20);
    let kept = home.path().join("kept");
    let (code, text) = clustermax(&[path("verify"), &changed, path("--unpack"), &kept]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("raw/inventory/n1.json has 67108864 bytes, MANIFEST.json says"), "{text}");
    assert!(!kept.join("raw/inventory/n1.json").exists());

    // The header of an entry claims a terabyte, and the manifest agrees.
    let bytes: u64 = 1 << 40;
    let json = String::from_utf8(whole[0].1.clone()).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&json).unwrap();
    manifest["files"]["raw/inventory/n1.json"]["bytes"] = bytes.into();
    let gzip =
        flate2::write::GzEncoder::new(fs::File::create(&changed).unwrap(), flate2::Compression::fast());
    let mut archive = tar::Builder::new(gzip);
    for (name, content) in &whole {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        let content =
            if name.ends_with("MANIFEST.json") { manifest.to_string().into_bytes() } else { content.clone() };
        header.set_size(if name.ends_with("n1.json") { bytes } else { content.len() as u64 });
        header.set_cksum();
        archive.append(&header, &content[..]).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap();
    let (code, text) = clustermax(&[path("verify"), &changed]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("not a whole gzip-compressed tar archive") && text.lines().count() == 1, "{text}");
}

/// Another run's files under this run's name, and the other way round.
#[test]
fn a_run_that_was_moved_is_named() {
    let (home, run, file) = bundled();
    let changed = home.path().join("changed.tar.gz");
    // The archive's folder was renamed.
    let moved: Vec<(String, Vec<u8>)> = entries(&file)
        .into_iter()
        .map(|(name, content)| (name.replacen(RUN, "20260101T000000Z-9", 1), content))
        .collect();
    pack(&changed, &moved, None);
    let (code, text) = clustermax(&[path("verify"), &changed]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("is of run") && text.contains("20260101T000000Z-9"), "{text}");

    // The records say another run than run.json.
    let text = fs::read_to_string(run.join("run.json")).unwrap();
    fs::write(run.join("run.json"), text.replace(RUN, "20260101T000000Z-9")).unwrap();
    let bundle = home.path().join("b.tar.gz");
    assert_eq!(clustermax(&[path("bundle"), &run, path("--out"), &bundle]).0, 0);
    let (code, text) = clustermax(&[path("verify"), &bundle]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("run") && text.contains("differs:"), "{text}");
}

#[test]
fn a_raw_file_or_score_changed_before_bundling_is_named() {
    for (file, from, to, expected) in [
        ("raw/inventory/n1.json", "8", "4", "evidence raw/inventory/n1.json"),
        ("score.json", "\"rating\"", "\"raiting\"", "score.json is not what these records give"),
        ("records.jsonl", "\"value\":8.0", "\"value\":9.0", "score.json is not what these records give"),
        ("score.json", "\"tool\": \"clustermax ", "\"tool\": \"clustermax 99.", "use that release"),
    ] {
        let (home, run) = scored();
        let text = fs::read_to_string(run.join(file)).unwrap();
        assert!(text.contains(from), "{file}");
        fs::write(run.join(file), text.replacen(from, to, 1)).unwrap();
        let bundle = home.path().join("b.tar.gz");
        assert_eq!(clustermax(&[path("bundle"), &run, path("--out"), &bundle]).0, 0);
        let (code, text) = clustermax(&[path("verify"), &bundle]);
        assert_eq!(code, 1, "{file}: {text}");
        assert!(text.contains(expected), "{file}: {text}");
    }
}

#[test]
fn what_is_no_bundle_is_refused_in_a_sentence() {
    let (home, run, file) = bundled();
    let bytes = fs::read(&file).unwrap();
    let bad = home.path().join("bad");
    let empty_tar = home.path().join("empty");
    pack(&empty_tar, &[], None);
    let wrong_first = home.path().join("first");
    pack(&wrong_first, &[("run.json".to_owned(), Vec::new())], None);
    let schema = home.path().join("schema");
    let mut whole = entries(&file);
    whole[0].1 = String::from_utf8(whole[0].1.clone()).unwrap().replace("bundle/1", "bundle/9").into_bytes();
    pack(&schema, &whole, None);
    fs::write(&bad, &bytes[..bytes.len() / 2]).unwrap();
    let text = home.path().join("text");
    fs::write(&text, "hello").unwrap();
    for (file, expected) in [
        (bad.as_path(), "not a whole gzip-compressed tar archive"),
        (&text, "not a whole gzip-compressed tar archive"),
        (&empty_tar, "the archive is empty"),
        (&wrong_first, "its first file is"),
        (&schema, "clustermax-bundle/9"),
        (path("/nonexistent.tar.gz"), "cannot read /nonexistent.tar.gz"),
    ] {
        let (code, text) = clustermax(&[path("verify"), file]);
        assert_eq!(code, 2, "{expected}: {text}");
        assert!(text.contains(expected) && text.lines().count() == 1, "{expected}: {text}");
    }

    std::os::unix::fs::symlink("/etc/passwd", run.join("raw/link")).unwrap();
    let (code, text) = clustermax(&[path("bundle"), &run, path("--out"), &home.path().join("c")]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("raw/link is neither a file nor a folder"), "{text}");
    fs::remove_file(run.join("raw/link")).unwrap();
    let (code, text) = clustermax(&[path("bundle"), &run, path("--out"), path("/nonexistent/b.tar.gz")]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("cannot write /nonexistent/b.tar.gz"), "{text}");
    fs::remove_file(run.join("score.json")).unwrap();
    let (code, text) = clustermax(&[path("bundle"), &run]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("run `clustermax score"), "{text}");
}

/// What no hash of a file sees: bytes behind the archive or its last file, a cut trailer, a header with a name or a time.
#[test]
fn a_bundle_with_anything_around_its_files_is_refused() {
    let (home, _, file) = bundled();
    let whole = fs::read(&file).unwrap();
    let end = whole.len();
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(&whole[..]).read_to_end(&mut tar).unwrap();
    let packed = |bytes: &[u8]| {
        let mut out = Vec::new();
        flate2::read::GzEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut out).unwrap();
        out
    };
    let changed = home.path().join("changed.tar.gz");
    let verify = |bytes: &[u8]| {
        fs::write(&changed, bytes).unwrap();
        clustermax(&[path("verify"), &changed])
    };
    assert_eq!(verify(&packed(&[&tar[..], &[0; 8192]].concat())).0, 0, "padding");
    for (bytes, expected) in [
        ([&whole[..], b"hidden"].concat(), "something stands behind the archive"),
        ([&whole[..], &packed(b"hidden")].concat(), "something stands behind the archive"),
        (packed(&[&tar[..], b"hidden"].concat()), "something stands behind its last file"),
        (packed(&[&tar[..], &vec![0; 2 << 20]].concat()), "something stands behind its last file"),
        (whole[..end - 8].to_vec(), "not a whole gzip-compressed tar archive"),
        (whole[..end - 1].to_vec(), "not a whole gzip-compressed tar archive"),
        ([&whole[..4], &[1], &whole[5..]].concat(), "its gzip header carries"),
    ] {
        let (code, text) = verify(&bytes);
        assert_eq!(code, 2, "{expected}: {text}");
        assert!(text.contains(expected) && text.lines().count() == 1, "{expected}: {text}");
    }
    // Every bit counts, but for the two bytes of the header that say how hard and on what system it was packed.
    for at in (0..10).chain((10..end).step_by(end / 25)).chain(end - 8..end).filter(|at| ![8, 9].contains(at))
    {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        let (code, text) = verify(&flipped);
        assert!(code == 1 || code == 2, "byte {at} of {end}: {text}");
    }
}

/// Names and attributes are read into memory before a file of the archive is, and 1,000 zeros pack to one byte.
#[test]
fn an_archive_that_would_fill_memory_or_disk_is_refused() {
    let (home, _, file) = bundled();
    let bomb = home.path().join("bomb.tar.gz");
    let zeros = |header: &mut tar::Header, bytes: u64| {
        header.set_size(bytes);
        header.set_cksum();
        let gzip =
            flate2::write::GzEncoder::new(fs::File::create(&bomb).unwrap(), flate2::Compression::fast());
        let mut archive = tar::Builder::new(gzip);
        for (name, content) in entries(&file) {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, &content[..]).unwrap();
        }
        archive.append(header, std::io::repeat(0).take(bytes)).unwrap();
        archive.into_inner().unwrap().finish().unwrap();
        clustermax(&[path("verify"), &bomb])
    };
    for kind in [tar::EntryType::GNULongName, tar::EntryType::XHeader] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        let (code, text) = zeros(&mut header, 1 << 20);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("a name in it has 1048576 bytes, more than 65536"), "{text}");
    }
}

#[test]
fn a_path_that_is_spelt_in_two_ways_or_lies_in_a_file_is_named() {
    let (home, _, file) = bundled();
    let changed = home.path().join("changed.tar.gz");
    for (name, expected) in [
        ("raw//x", "is no plain path"),
        ("raw/./x", "is no plain path"),
        ("raw/x/", "is no plain path"),
        ("MANIFEST.json", "is no plain path"),
        ("run.json/x", "cannot lie beside another entry"),
        ("raw", "cannot lie beside another entry"),
    ] {
        let mut whole = entries(&file);
        let mut manifest: serde_json::Value = serde_json::from_slice(&whole[0].1).unwrap();
        manifest["files"][name] = serde_json::json!({"bytes": 1, "sha256": sha256(b"x")});
        whole[0].1 = manifest.to_string().into_bytes();
        whole.push((format!("{RUN}/{name}"), b"x".to_vec()));
        pack(&changed, &whole, None);
        let (code, text) = clustermax(&[path("verify"), &changed]);
        assert_eq!(code, 1, "{name}: {text}");
        assert!(text.contains(expected), "{name}: {text}");
    }
}

/// A disk that fills up: no half of a run stays where it was asked for.
#[test]
fn a_bundle_that_cannot_be_unpacked_leaves_no_half_of_a_run() {
    let (home, _, file) = bundled();
    let whole = fs::read(&file).unwrap();
    let cut = home.path().join("cut.tar.gz");
    fs::write(&cut, &whole[..whole.len() - 100]).unwrap();
    let kept = home.path().join("kept");
    assert_eq!(clustermax(&[path("verify"), &cut, path("--unpack"), &kept]).0, 2);
    assert!(!kept.exists());
}

/// The raw output is as it was and the score follows from the records: only reading the output again tells.
#[test]
fn a_figure_that_its_raw_output_does_not_give_is_named() {
    let gpus = "\"metric\":\"gpu_count\",\"value\":8.0";
    let (_home, run) = scored();
    let (code, text) = clustermax(&[path("verify"), &run]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(" of 1 stages were read again from their raw output\n"), "{text}");
    type Change<'a> = Box<dyn Fn(&str) -> String + 'a>;
    let changes: [(&str, Change<'_>, &str); 4] = [
        (
            "value",
            Box::new(|text| text.replace(gpus, &gpus.replace('8', "9"))),
            "gpu_count (n1) is 9, its raw output gives 8",
        ),
        (
            "added",
            Box::new(|text| {
                let line = text.lines().find(|line| line.contains(gpus)).unwrap();
                format!("{text}{}\n", line.replace("gpu_count", "gpu_missing").replace("8.0", "0.0"))
            }),
            "gpu_missing (n1) is not in the raw output of stage inventory",
        ),
        (
            "removed",
            Box::new(|text| {
                text.lines().filter(|line| !line.contains(gpus)).flat_map(|line| [line, "\n"]).collect()
            }),
            "the raw output of stage inventory gives gpu_count (n1), records.jsonl does not",
        ),
        (
            "pointer",
            Box::new(|text| text.replace("/items/0", "/items")),
            "gpu_count (n1) says something else than its raw output",
        ),
    ];
    for (name, change, expected) in changes {
        let (_home, run) = scored();
        let file = run.join("records.jsonl");
        let text = fs::read_to_string(&file).unwrap();
        let changed = change(&text);
        assert_ne!(text, changed, "{name}: {text}");
        fs::write(&file, changed).unwrap();
        fs::remove_dir_all(run.join("stages")).unwrap();
        assert!(clustermax(&[path("score"), &run]).0 <= 1);
        let (code, text) = clustermax(&[path("verify"), &run]);
        assert_eq!(code, 1, "{name}: {text}");
        assert!(text.contains(expected), "{name}: {text}");
    }
}

/// The figures of an import come from its files in the folder, with or without `--node`.
#[test]
fn an_import_is_read_again_and_a_changed_figure_of_it_is_named() {
    let (_home, run) = scored();
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import");
    let import = |name: &str, more: &[&str]| {
        let file = samples.join(name);
        let args =
            [&["import", file.to_str().unwrap(), "--results", run.to_str().unwrap()][..], more].concat();
        let args: Vec<&Path> = args.into_iter().map(Path::new).collect();
        let (code, text) = clustermax(&args);
        assert_eq!(code, 0, "{name}: {text}");
    };
    import("dcgmi4.json", &[]);
    import("node.prom", &["--node", "n1"]);
    import("audit.values.json", &[]);
    import("sacct.txt", &[]);
    assert!(clustermax(&[path("score"), &run]).0 <= 1);
    let (code, text) = clustermax(&[path("verify"), &run]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(" of 5 stages were read again from their raw output\n"), "{text}");
    let file = run.join("records.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let failed =
        text.lines().find(|line| line.contains("import-dcgmi") && line.contains("\"value\":0.0")).unwrap();
    fs::write(&file, text.replace(failed, &failed.replace("\"value\":0.0", "\"value\":1.0"))).unwrap();
    assert!(clustermax(&[path("score"), &run]).0 <= 1);
    let (code, text) = clustermax(&[path("verify"), &run]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("dcgm_diag (n1 g1") && text.contains("is 1, its raw output gives 0"), "{text}");
}

#[test]
fn suite_collect_names_a_stage_whose_manifest_is_cut_short() {
    let (_home, run) = scored();
    let collect = || clustermax(&[path("suite"), path("collect"), &run]);
    assert_eq!(collect().0, 0);
    let manifest = run.join("stages/inventory.json");
    let whole = fs::read(&manifest).unwrap();
    fs::write(&manifest, &whole[..30]).unwrap();
    let (code, text) = collect();
    assert!(
        code == 1 && text.starts_with(&format!("inventory: {} is no manifest", manifest.display())),
        "{text}"
    );
    assert!(text.contains(&format!("`clustermax suite resume {}`", run.display())), "{text}");
    assert_eq!(fs::read(&manifest).unwrap(), whole[..30]);
}

//! The library as the product sees it: through nvml-wrapper.
#![allow(deprecated)] // Old calls have to work too.

mod common;

use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::Node;
use nvidia_ml_sim::model::{
    ClockEvent, ComputeMode, Hang, Mig, NvLinkErrors, Process, ProcessKind, RecoveryAction, RetiredPages,
    ReturnCode,
};
use nvidia_ml_sim::{GpuFile, GpuModel, install};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Brand, Clock, ClockId, ComputeMode as WrapperComputeMode, EccCounter, MemoryError, MemoryLocation,
    PcieUtilCounter, PerformanceState, RetirementCause, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enum_wrappers::nv_link::{Capability, ErrorCounter};
use nvml_wrapper::enums::device::{BusType, DeviceArchitecture, SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, FieldIdScheme, Nvml};

const MIB: u64 = 1 << 20;

fn h100_node() -> Node {
    Node::new(&GpuFile::h100_sxm(8, 0x3a1c, 2))
}

fn field(device: &Device, id: u32) -> Result<SampleValue, NvmlError> {
    device.field_values_for(&[FieldId(id)])?.remove(0)?.value
}

#[test]
fn healthy_h100s_are_what_they_say() {
    let node = h100_node();
    let nvml = node.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), "570.172.08");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "12.570.172.08");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12080);
    assert_eq!(nvml.device_count().unwrap(), 8);
    assert_eq!(nvml.unit_count().unwrap(), 0);
    assert!(nvml.hic_versions().unwrap().is_empty());
    let own = std::process::id();
    assert!(nvml.sys_process_name(own, 4096).unwrap().contains("nvml_wrapper"));

    let wanted = GpuFile::load(&node.gpus()).unwrap();
    for index in 0..8 {
        let device = nvml.device_by_index(index).unwrap();
        let gpu = &wanted.gpus[index as usize];
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.uuid().unwrap(), gpu.uuid);
        assert_eq!(device.uuid().unwrap().len(), "GPU-00000000-0000-0000-0000-000000000000".len());
        assert_eq!(device.serial().unwrap(), gpu.serial);
        assert_eq!(device.minor_number().unwrap(), index);
        let pci = device.pci_info().unwrap();
        assert_eq!((pci.domain, pci.device), (0x3a1c, 0));
        assert_eq!(pci.bus_id, format!("00003A1C:{:02X}:00.0", pci.bus));
        assert_eq!(pci.pci_device_id, 0x2330_10de);
        assert_eq!(pci.pci_sub_system_id, Some(0x16c1_10de));
        for found in [
            nvml.device_by_uuid(gpu.uuid.as_str()).unwrap(),
            nvml.device_by_serial(gpu.serial.as_str()).unwrap(),
            nvml.device_by_pci_bus_id(pci.bus_id.as_str()).unwrap(),
            nvml.device_by_pci_bus_id(gpu.pci_address.to_string()).unwrap(),
        ] {
            assert_eq!(found.index().unwrap(), index);
        }
    }
    assert!(matches!(nvml.device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_pci_bus_id("0000:18:00.0"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_pci_bus_id("nonsense"), Err(NvmlError::InvalidArg)));
}

#[test]
fn healthy_h100_answers_every_question_of_a_health_check() {
    let node = h100_node();
    let nvml = node.nvml();
    let device = nvml.device_by_index(3).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(device.brand().unwrap(), Brand::Nvidia);
    assert_eq!(device.architecture().unwrap(), DeviceArchitecture::Hopper);
    let capability = device.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (9, 0));
    assert_eq!(device.vbios_version().unwrap(), "96.00.89.00.01");
    assert_eq!(device.info_rom_image_version().unwrap(), "G520.0200.00.05");
    device.validate_info_rom().unwrap();
    assert_eq!(device.config_checksum().unwrap(), 0);
    assert_eq!(device.board_part_number().unwrap(), "692-2G520-0200-000");
    assert_eq!(device.bus_type().unwrap(), BusType::Pcie);
    assert_eq!(device.num_cores().unwrap(), 16896);
    assert_eq!(device.memory_bus_width().unwrap(), 5120);
    assert_eq!(device.numa_node_id().unwrap(), 0);
    assert_eq!(device.gsp_firmware_version().unwrap(), "570.172.08");
    assert!(!device.is_multi_gpu_board().unwrap());
    assert!(!device.is_display_active().unwrap());
    assert_eq!(device.num_fans().unwrap(), 0);
    assert!(matches!(device.fan_speed(0), Err(NvmlError::NotSupported)));

    let memory = device.memory_info().unwrap();
    assert_eq!(memory.total, 81559 * MIB);
    assert_eq!((memory.reserved, memory.used), (551 * MIB, 0));
    assert_eq!(memory.free + memory.used + memory.reserved, memory.total);
    assert_eq!(device.bar1_memory_info().unwrap().total, 131_072 * MIB);

    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 30);
    assert_eq!(device.temperature_threshold(TemperatureThreshold::Shutdown).unwrap(), 95);
    assert_eq!(device.temperature_threshold(TemperatureThreshold::Slowdown).unwrap(), 89);
    assert_eq!(device.temperature_threshold(TemperatureThreshold::GpuMax).unwrap(), 87);
    assert_eq!(device.temperature_threshold(TemperatureThreshold::MemoryMax).unwrap(), 95);
    assert_eq!(device.power_usage().unwrap(), 70_000);
    assert_eq!(device.enforced_power_limit().unwrap(), 700_000);
    assert_eq!(device.power_management_limit().unwrap(), 700_000);
    assert_eq!(device.power_management_limit_default().unwrap(), 700_000);
    let limits = device.power_management_limit_constraints().unwrap();
    assert_eq!((limits.min_limit, limits.max_limit), (200_000, 700_000));
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 345);
    assert_eq!(device.clock(Clock::Memory, ClockId::Current).unwrap(), 2619);
    assert_eq!(device.max_clock_info(Clock::Graphics).unwrap(), 1980);
    assert_eq!(device.supported_memory_clocks().unwrap(), [2619]);
    let clocks = device.supported_graphics_clocks(2619).unwrap();
    assert_eq!((clocks[0], clocks[1], clocks.last()), (1980, 1965, Some(&210)));
    assert_eq!(device.current_throttle_reasons_strict().unwrap(), ThrottleReasons::GPU_IDLE);
    assert_eq!(device.performance_state().unwrap(), PerformanceState::Zero);
    assert_eq!(device.supported_performance_states().unwrap(), [PerformanceState::Zero]);
    assert_eq!(device.utilization_rates().unwrap().gpu, 0);
    assert!(device.is_in_persistent_mode().unwrap());
    assert_eq!(device.compute_mode().unwrap(), WrapperComputeMode::Default);
    let ecc = device.is_ecc_enabled().unwrap();
    assert!(ecc.currently_enabled && ecc.pending_enabled);
    assert_eq!(device.current_pcie_link_gen().unwrap(), 5);
    assert_eq!(device.max_pcie_link_gen().unwrap(), 5);
    assert_eq!(device.current_pcie_link_width().unwrap(), 16);
    assert_eq!(device.max_pcie_link_width().unwrap(), 16);
    assert_eq!(device.max_pcie_link_speed().unwrap().as_integer(), Some(32000));
    assert_eq!(device.pcie_link_speed().unwrap(), 32000);
    assert_eq!(device.pcie_replay_counter().unwrap(), 0);
    assert_eq!(device.pcie_throughput(PcieUtilCounter::Send).unwrap(), 0);
    let mig = device.mig_mode().unwrap();
    assert_eq!((mig.current, mig.pending), (0, 0));
    assert!(device.running_compute_processes().unwrap().is_empty());
    assert!(matches!(device.retired_pages(RetirementCause::DoubleBitEccError), Err(NvmlError::NotSupported)));
    for id in [142, 143, 144, 145, 230] {
        assert_eq!(field(&device, id).unwrap(), SampleValue::U32(0), "field {id}");
    }
}

#[test]
fn nvlinks_of_a_healthy_h100() {
    let node = h100_node();
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    for number in 0..18 {
        let link = device.link_wrapper_for(number);
        assert!(link.is_active().unwrap());
        assert_eq!(link.version().unwrap(), 6);
        assert!(link.has_capability(Capability::P2p).unwrap());
        assert!(!link.has_capability(Capability::SliBridge).unwrap());
        assert_eq!(link.error_counter(ErrorCounter::DlReplay).unwrap(), 0);
        assert_eq!(link.remote_pci_info().unwrap().domain, 0x3a1c);
    }
    assert!(matches!(device.link_wrapper_for(18).is_active(), Err(NvmlError::InvalidArg)));
    assert_eq!(field(&device, 91).unwrap(), SampleValue::U32(18));
    assert_eq!(field(&device, 90).unwrap(), SampleValue::U32(26_562));
}

#[test]
fn every_model_has_its_own_figures() {
    for (model, name, mib, links, architecture) in [
        (GpuModel::A100Sxm, "NVIDIA A100-SXM4-80GB", 81920, 12, DeviceArchitecture::Ampere),
        (GpuModel::H100Sxm, "NVIDIA H100 80GB HBM3", 81559, 18, DeviceArchitecture::Hopper),
        (GpuModel::H200Sxm, "NVIDIA H200", 143_771, 18, DeviceArchitecture::Hopper),
        (GpuModel::B200, "NVIDIA B200", 183_359, 18, DeviceArchitecture::Blackwell),
    ] {
        let node = Node::new(&GpuFile::new(model, 2, 1, 0));
        let nvml = node.nvml();
        let device = nvml.device_by_index(1).unwrap();
        assert_eq!(device.name().unwrap(), name);
        assert_eq!(device.memory_info().unwrap().total, mib * MIB);
        assert_eq!(device.architecture().unwrap(), architecture);
        let active = (0..18).filter(|&n| device.link_wrapper_for(n).is_active().unwrap_or(false)).count();
        assert_eq!(active, links, "{name}");
    }
}

#[test]
fn faults_show_at_the_next_call_of_a_running_program() {
    let node = h100_node();
    let nvml = node.nvml();
    let device = nvml.device_by_index(2).unwrap();
    assert_eq!(field(&device, 230).unwrap(), SampleValue::U32(0));
    node.change(|file| {
        let gpu = &mut file.gpus[2];
        gpu.recovery_action = RecoveryAction::DrainAndReset;
        let rows = gpu.remapped_rows.as_mut().unwrap();
        (rows.uncorrectable, rows.pending, rows.failure) = (3, true, true);
        gpu.ecc.since_load.dram_uncorrected = 2;
        gpu.ecc.since_load.sram_parity = 1;
        gpu.ecc.aggregate.sram_secded = 5;
        gpu.ecc.aggregate.sram_corrected = 40;
        gpu.temperature.gpu = 93;
        gpu.clock_events = [ClockEvent::HwSlowdown, ClockEvent::HwThermalSlowdown].into();
        gpu.power.usage = 650_000;
        gpu.pcie.width = 8;
        gpu.pcie.replay_counter = 17;
        gpu.utilization.gpu = 99;
        gpu.persistence_mode = false;
        gpu.compute_mode = ComputeMode::ExclusiveProcess;
        gpu.inforom_valid = false;
        gpu.processes = vec![
            Process { pid: 4711, used_memory: 5 << 30, kind: ProcessKind::Compute },
            Process { pid: 4712, used_memory: 1 << 20, kind: ProcessKind::Graphics },
        ];
        let nvlink = gpu.nvlink.as_mut().unwrap();
        nvlink.down = [4, 9].into();
        nvlink.errors.push(NvLinkErrors { link: 1, recovery: 6, crc_data: 8, ..NvLinkErrors::default() });
        gpu.mig = Some(Mig { enabled: true, pending: true, max_devices: 7 });
    });
    assert_eq!(field(&device, 230).unwrap(), SampleValue::U32(4));
    for (id, value) in [(142, 0), (143, 3), (144, 1), (145, 1)] {
        assert_eq!(field(&device, id).unwrap(), SampleValue::U32(value));
    }
    let counter = |error, kind, place| device.memory_error_counter(error, kind, place);
    let (corrected, uncorrected) = (MemoryError::Corrected, MemoryError::Uncorrected);
    assert_eq!(counter(uncorrected, EccCounter::Volatile, MemoryLocation::Device).unwrap(), 2);
    assert_eq!(counter(uncorrected, EccCounter::Volatile, MemoryLocation::SRAM).unwrap(), 1);
    assert_eq!(counter(uncorrected, EccCounter::Aggregate, MemoryLocation::SRAM).unwrap(), 5);
    assert_eq!(counter(corrected, EccCounter::Aggregate, MemoryLocation::SRAM).unwrap(), 40);
    for place in
        [MemoryLocation::L1Cache, MemoryLocation::L2Cache, MemoryLocation::RegisterFile, MemoryLocation::Cbu]
    {
        let answer = counter(uncorrected, EccCounter::Volatile, place);
        assert!(matches!(answer, Err(NvmlError::NotSupported)));
    }
    assert_eq!(device.total_ecc_errors(uncorrected, EccCounter::Volatile).unwrap(), 3);
    assert_eq!(device.total_ecc_errors(corrected, EccCounter::Aggregate).unwrap(), 40);
    assert_eq!(device.detailed_ecc_errors(uncorrected, EccCounter::Volatile).unwrap().device_memory, 2);
    assert_eq!(field(&device, 4).unwrap(), SampleValue::U64(3));
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 93);
    assert_eq!(
        device.current_throttle_reasons_strict().unwrap(),
        ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN
    );
    assert_eq!(device.power_usage().unwrap(), 650_000);
    assert_eq!(device.current_pcie_link_width().unwrap(), 8);
    assert_eq!(device.pcie_replay_counter().unwrap(), 17);
    assert!(!device.is_in_persistent_mode().unwrap());
    assert_eq!(device.compute_mode().unwrap(), WrapperComputeMode::ExclusiveProcess);
    assert!(matches!(device.validate_info_rom(), Err(NvmlError::CorruptedInfoROM)));
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!((processes[0].pid, processes[0].gpu_instance_id), (4711, None));
    assert_eq!(processes[0].used_gpu_memory, UsedGpuMemory::Used(5 << 30));
    assert_eq!(device.running_graphics_processes().unwrap()[0].pid, 4712);
    assert!(!device.link_wrapper_for(4).is_active().unwrap());
    assert!(matches!(device.link_wrapper_for(4).remote_pci_info(), Err(NvmlError::NotSupported)));
    assert!(device.link_wrapper_for(5).is_active().unwrap());
    assert_eq!(device.link_wrapper_for(1).error_counter(ErrorCounter::DlRecovery).unwrap(), 6);
    assert_eq!(device.link_wrapper_for(1).error_counter(ErrorCounter::DlCrcData).unwrap(), 8);
    assert_eq!(device.mig_mode().unwrap().current, 1);
    assert_eq!(device.mig_device_count().unwrap(), 7);
    assert!(matches!(device.mig_device_by_index(0), Err(NvmlError::NotFound)));
    // In MIG mode load is known per instance only.
    assert!(matches!(device.utilization_rates(), Err(NvmlError::NotSupported)));
    // The neighbours stay well.
    let neighbour = nvml.device_by_index(1).unwrap();
    assert_eq!(neighbour.temperature(TemperatureSensor::Gpu).unwrap(), 30);
    assert_eq!(field(&neighbour, 230).unwrap(), SampleValue::U32(0));
    node.write(&GpuFile::h100_sxm(8, 0x3a1c, 2));
    assert_eq!(field(&device, 230).unwrap(), SampleValue::U32(0));
}

#[test]
fn retired_pages_of_an_older_gpu() {
    let mut file = GpuFile::h100_sxm(1, 1, 0);
    file.gpus[0].remapped_rows = None;
    file.gpus[0].retired_pages =
        Some(RetiredPages { single_bit: vec![], double_bit: vec![0x1000, 0x2000], pending: true });
    let node = Node::new(&file);
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let pages = device.retired_pages(RetirementCause::DoubleBitEccError).unwrap();
    assert_eq!(pages.iter().map(|page| page.address).collect::<Vec<_>>(), [0x1000, 0x2000]);
    assert!(device.retired_pages(RetirementCause::MultipleSingleBitEccErrors).unwrap().is_empty());
    assert!(device.are_pages_pending_retired().unwrap());
    assert!(matches!(field(&device, 145), Err(NvmlError::NotSupported)));
}

#[test]
fn a_lost_gpu_is_counted_and_answers_nothing_else() {
    let node = h100_node();
    let nvml = node.nvml();
    node.change(|file| file.gpus[5].lost = true);
    assert_eq!(nvml.device_count().unwrap(), 8);
    let lost = nvml.device_by_index(5).unwrap();
    let uuid = GpuFile::load(&node.gpus()).unwrap().gpus[5].uuid.clone();
    assert!(matches!(lost.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.pci_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(field(&lost, 230), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.fan_speed(0), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_uuid(uuid), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_by_index(6).unwrap().index().unwrap(), 6);
}

#[test]
fn a_missing_gpu_is_not_counted() {
    let node = h100_node();
    let nvml = node.nvml();
    let third = nvml.device_by_index(3).unwrap();
    let fourth = nvml.device_by_index(4).unwrap();
    node.change(|file| file.gpus[3].missing = true);
    assert_eq!(nvml.device_count().unwrap(), 7);
    assert!(matches!(third.name(), Err(NvmlError::GpuLost)));
    assert_eq!(fourth.index().unwrap(), 3);
    assert_eq!(nvml.device_by_index(3).unwrap().minor_number().unwrap(), 4);
    assert!(matches!(nvml.device_by_index(7), Err(NvmlError::InvalidArg)));
}

#[test]
fn forced_return_codes() {
    let node = h100_node();
    let nvml = node.nvml();
    node.change(|file| {
        file.errors.insert("nvmlDeviceGetPowerUsage".to_owned(), ReturnCode::Unknown);
        file.gpus[1].errors.insert("nvmlDeviceGetMemoryInfo".to_owned(), ReturnCode::ResetRequired);
        file.missing.functions.push("nvmlDeviceGetNvLinkState".to_owned());
    });
    let (zero, one) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    assert!(matches!(zero.power_usage(), Err(NvmlError::Unknown)));
    assert!(matches!(one.power_usage(), Err(NvmlError::Unknown)));
    // nvml-wrapper calls the function's second version.
    assert!(matches!(one.memory_info(), Err(NvmlError::ResetRequired)));
    zero.memory_info().unwrap();
    assert!(matches!(zero.link_wrapper_for(0).is_active(), Err(NvmlError::FunctionNotFound)));
    node.change(|file| {
        file.errors.insert("nvmlInit".to_owned(), ReturnCode::DriverNotLoaded);
    });
    assert!(matches!(node.init(), Err(NvmlError::DriverNotLoaded)));
}

#[test]
fn a_library_that_lacks_a_function() {
    let folder = tempfile::tempdir().unwrap();
    GpuFile::h100_sxm(1, 1, 0).save_atomic(&folder.path().join("gpus.toml")).unwrap();
    let lacking = ["nvmlDeviceGetFieldValues", "nvmlDeviceGetNumaNodeId"];
    let library = install(&common::built_library(), folder.path(), &lacking).unwrap();
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(field(&device, 230), Err(NvmlError::FailedToLoadSymbol(_))));
    assert!(matches!(device.numa_node_id(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert_eq!(device.num_cores().unwrap(), 16896);
    assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
    let refused = install(&common::built_library(), folder.path(), &["nvmlDeviceGetNothing"]).unwrap_err();
    assert!(refused.to_string().contains("has no function nvmlDeviceGetNothing"));
}

#[test]
fn a_call_hangs_for_as_long_as_told() {
    let node = h100_node();
    let nvml = node.nvml();
    node.change(|file| {
        file.hang = Some(Hang {
            function: "nvmlDeviceGetTemperature".to_owned(),
            gpu: Some(1),
            seconds: Some(1.0),
            forever: false,
        });
    });
    let begin = Instant::now();
    assert_eq!(nvml.device_by_index(1).unwrap().temperature(TemperatureSensor::Gpu).unwrap(), 30);
    assert!(begin.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_call_that_hangs_for_ever_ends_with_its_fault() {
    let node = h100_node();
    node.change(|file| {
        file.hang = Some(Hang { function: "*".to_owned(), gpu: Some(2), seconds: None, forever: true });
    });
    let nvml = node.nvml();
    // Other GPUs, and calls without a GPU, go on.
    assert_eq!(nvml.device_count().unwrap(), 8);
    nvml.device_by_index(1).unwrap().name().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let nvml = &nvml;
        scope.spawn(move || sender.send(nvml.device_by_index(2).unwrap().name().unwrap()).unwrap());
        assert_eq!(receiver.recv_timeout(Duration::from_millis(400)), Err(mpsc::RecvTimeoutError::Timeout));
        // Nobody else waits for the call that hangs.
        nvml.device_by_index(1).unwrap().name().unwrap();
        node.change(|file| file.hang = None);
        assert_eq!(receiver.recv().unwrap(), "NVIDIA H100 80GB HBM3");
    });
}

#[test]
fn even_initialisation_can_hang() {
    let node = h100_node();
    node.change(|file| {
        file.hang = Some(Hang { function: "nvmlInit".to_owned(), gpu: None, seconds: None, forever: true });
    });
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let node = &node;
        scope.spawn(move || sender.send(node.nvml().device_count().unwrap()).unwrap());
        assert_eq!(receiver.recv_timeout(Duration::from_millis(400)), Err(mpsc::RecvTimeoutError::Timeout));
        // The cluster is taken down: nothing may stay stuck.
        fs::remove_file(node.gpus()).unwrap();
        assert_eq!(receiver.recv().unwrap(), 8);
    });
}

#[test]
fn what_cannot_be_read_changes_nothing() {
    let node = h100_node();
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let whole = fs::read_to_string(node.gpus()).unwrap();
    let half = &whole[..whole.len() / 2];
    for broken in
        ["", half, "[[gpus]]\ntemprature = 3\n", "gpus = [7]\n", "gpus = []\ndriver_version = \"\"\n"]
    {
        fs::write(node.gpus(), broken).unwrap();
        assert_eq!(nvml.device_count().unwrap(), 8, "{broken:?}");
        node.write(&GpuFile::h100_sxm(8, 0x3a1c, 2));
        assert_eq!(nvml.device_count().unwrap(), 8);
    }
    fs::remove_file(node.gpus()).unwrap();
    assert_eq!(nvml.device_count().unwrap(), 8);
    device.name().unwrap();
    node.write(&GpuFile::h100_sxm(4, 0x3a1c, 2));
    assert_eq!(nvml.device_count().unwrap(), 4);
}

#[test]
fn without_any_good_file_nothing_starts() {
    let node = Node::without_file();
    assert!(matches!(node.init(), Err(NvmlError::Unknown)));
    fs::write(node.gpus(), "not toml").unwrap();
    assert!(matches!(node.init(), Err(NvmlError::Unknown)));
    node.write(&GpuFile::h100_sxm(1, 1, 0));
    assert_eq!(node.nvml().device_count().unwrap(), 1);
}

#[test]
fn field_ids_follow_the_driver() {
    let thermal_slowdown = 252;
    for (driver, scheme) in [("570.172.08", FieldIdScheme::V12), ("580.82.07", FieldIdScheme::V13Update1)] {
        let mut file = GpuFile::h100_sxm(1, 1, 0);
        file.driver_version = driver.to_owned();
        file.gpus[0].clock_event_ns.insert(ClockEvent::HwThermalSlowdown, 123);
        file.gpus[0].recovery_action = RecoveryAction::GpuReset;
        let node = Node::new(&file);
        let nvml = node.nvml();
        assert_eq!(nvml.field_id_scheme(), scheme);
        let device = nvml.device_by_index(0).unwrap();
        assert_eq!(field(&device, thermal_slowdown).unwrap(), SampleValue::U64(123), "{driver}");
        assert_eq!(field(&device, 230).unwrap(), SampleValue::U32(1), "{driver}");
        let samples = device.field_values_for(&[FieldId(83), FieldId(0)]).unwrap();
        assert_eq!(samples[0].as_ref().unwrap().field, FieldId(83));
        assert!(samples[0].as_ref().unwrap().timestamp > 1_700_000_000_000_000);
        assert!(matches!(samples[1].as_ref().unwrap().value, Err(NvmlError::InvalidArg)));
    }
}

#[test]
fn events_end_with_their_time_out() {
    let node = h100_node();
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let set = nvml.create_event_set().unwrap();
    let set =
        device.register_events(device.supported_event_types().unwrap(), set).map_err(|error| error.error);
    assert!(matches!(set.unwrap().wait(10), Err(NvmlError::Timeout)));
}

#[test]
fn threads_read_while_the_file_changes() {
    let node = h100_node();
    let nvml = node.nvml();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|index| {
                let nvml = &nvml;
                scope.spawn(move || {
                    for _ in 0..300 {
                        assert_eq!(nvml.device_count().unwrap(), 8);
                        let degrees =
                            nvml.device_by_index(index).unwrap().temperature(TemperatureSensor::Gpu);
                        assert!((30..60).contains(&degrees.unwrap()));
                    }
                })
            })
            .collect();
        for degrees in 30..60 {
            node.change(|file| file.gpus.iter_mut().for_each(|gpu| gpu.temperature.gpu = degrees));
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(nvml.device_by_index(7).unwrap().temperature(TemperatureSensor::Gpu).unwrap(), 59);
}

#!/usr/bin/env python3
"""The library as NVIDIA's own Python bindings see it.

Run by foreign_client.rs with pynvml on PYTHONPATH and a simulated node's folder as first argument. Its
gpus.toml describes eight H100s in PCI domain 3a1c; GPU 5 is lost, GPU 1 has the faults asserted below.
"""

import os
import re
import sys
import unittest
from ctypes import CDLL, byref, c_uint, sizeof

import pynvml as nvml

NODE = sys.argv.pop(1)
MIB = 1 << 20


class ForeignClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        nvml.nvmlInit()

    @classmethod
    def tearDownClass(cls):
        nvml.nvmlShutdown()

    def setUp(self):
        self.well = nvml.nvmlDeviceGetHandleByIndex(0)
        self.sick = nvml.nvmlDeviceGetHandleByIndex(1)

    def field(self, handle, *field):
        value = nvml.nvmlDeviceGetFieldValues(handle, [field if len(field) > 1 else field[0]])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        members = {
            nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        }
        return getattr(value.value, members[value.valueType])

    def test_every_function_the_bindings_look_up_is_exported(self):
        library = CDLL("libnvidia-ml.so.1")
        with open(nvml.__file__, encoding="utf-8") as source:
            names = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', source.read()))
        self.assertGreater(len(names), 300)
        self.assertEqual([name for name in sorted(names) if not hasattr(library, name)], [])

    def test_system(self):
        self.assertEqual(nvml.nvmlSystemGetDriverVersion(), "580.95.05")
        self.assertEqual(nvml.nvmlSystemGetNVMLVersion(), "13.580.95.05")
        self.assertEqual(nvml.nvmlSystemGetCudaDriverVersion_v2(), 13000)
        self.assertEqual(nvml.nvmlDeviceGetCount(), 8)
        self.assertIn("python", nvml.nvmlSystemGetProcessName(os.getpid()))
        self.assertEqual(nvml.nvmlErrorString(nvml.NVML_ERROR_GPU_IS_LOST), "GPU is lost")

    def test_identity(self):
        self.assertEqual(nvml.nvmlDeviceGetName(self.well), "NVIDIA H100 80GB HBM3")
        self.assertEqual(nvml.nvmlDeviceGetBrand(self.well), nvml.NVML_BRAND_NVIDIA)
        self.assertEqual(nvml.nvmlDeviceGetArchitecture(self.well), nvml.NVML_DEVICE_ARCH_HOPPER)
        self.assertEqual(nvml.nvmlDeviceGetCudaComputeCapability(self.well), (9, 0))
        uuids = {nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i)) for i in (0, 1, 2, 3, 4, 6, 7)}
        self.assertEqual(len(uuids), 7)
        for uuid in uuids:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self.assertEqual(nvml.nvmlDeviceGetUUID(handle), uuid)
            self.assertRegex(uuid, r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        pci = nvml.nvmlDeviceGetPciInfo(self.sick)
        self.assertEqual((pci.domain, pci.bus, pci.device), (0x3A1C, 0x2A, 0))
        self.assertEqual(pci.busId, "00003A1C:2A:00.0")
        self.assertEqual(pci.busIdLegacy, "3A1C:2A:00.0")
        self.assertEqual(pci.pciDeviceId, 0x233010DE)
        found = nvml.nvmlDeviceGetHandleByPciBusId("00003A1C:2A:00.0")
        self.assertEqual(nvml.nvmlDeviceGetIndex(found), 1)
        self.assertEqual(nvml.nvmlDeviceGetMinorNumber(found), 1)
        self.assertEqual(nvml.nvmlDeviceGetVbiosVersion(self.well), "96.00.89.00.01")
        self.assertEqual(nvml.nvmlDeviceGetBoardPartNumber(self.well), "692-2G520-0200-000")
        self.assertEqual(nvml.nvmlDeviceGetInforomImageVersion(self.well), "G520.0200.00.05")

    def test_calls_of_older_clients(self):
        library = CDLL("libnvidia-ml.so.1")
        count = c_uint()
        self.assertEqual(library.nvmlInit(), nvml.NVML_SUCCESS)
        self.assertEqual(library.nvmlDeviceGetCount(byref(count)), nvml.NVML_SUCCESS)
        self.assertEqual(count.value, 8)
        handle = nvml.c_nvmlDevice_t()
        self.assertEqual(library.nvmlDeviceGetHandleByIndex(c_uint(1), byref(handle)), nvml.NVML_SUCCESS)
        for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2"):
            pci = nvml.nvmlPciInfo_v2_t()
            self.assertEqual(getattr(library, name)(handle, byref(pci)), nvml.NVML_SUCCESS)
            self.assertEqual((pci.busId, pci.domain), ("3A1C:2A:00.0", 0x3A1C))
        processes = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
        self.assertEqual([(p.pid, p.usedGpuMemory) for p in processes], [(4711, 5 << 30)])
        processes = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        self.assertEqual([(p.pid, p.gpuInstanceId) for p in processes], [(4711, 0xFFFFFFFF)])
        room = c_uint(0)
        answer = library.nvmlDeviceGetComputeRunningProcesses(handle, byref(room), None)
        self.assertEqual((answer, room.value), (nvml.NVML_ERROR_INSUFFICIENT_SIZE, 1))
        self.assertEqual(library.nvmlShutdown(), nvml.NVML_SUCCESS)

    def test_memory(self):
        one = nvml.nvmlDeviceGetMemoryInfo(self.sick)
        two = nvml.nvmlDeviceGetMemoryInfo(self.sick, version=nvml.nvmlMemory_v2)
        self.assertEqual((one.total, two.total), (81559 * MIB, 81559 * MIB))
        self.assertEqual((two.used, two.reserved), (5 << 30, 551 * MIB))
        self.assertEqual(one.used, two.used + two.reserved)
        self.assertEqual(nvml.nvmlDeviceGetBAR1MemoryInfo(self.well).bar1Total, 131072 * MIB)
        with self.assertRaises(nvml.NVMLError_ArgumentVersionMismatch):
            nvml.nvmlDeviceGetMemoryInfo(self.sick, version=1)

    def test_temperature_power_clocks(self):
        self.assertEqual(nvml.nvmlDeviceGetTemperature(self.sick, nvml.NVML_TEMPERATURE_GPU), 88)
        self.assertEqual(nvml.nvmlDeviceGetTemperatureV(self.sick, nvml.NVML_TEMPERATURE_GPU), 88)
        self.assertEqual(nvml.nvmlDeviceGetMarginTemperature(self.sick), -1)
        self.assertEqual(nvml.nvmlDeviceGetMarginTemperature(self.well), 57)
        limit = nvml.nvmlDeviceGetTemperatureThreshold(self.well, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
        self.assertEqual(limit, 95)
        self.assertEqual(self.field(self.well, nvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT), -8)
        self.assertEqual(nvml.nvmlDeviceGetPowerUsage(self.well), 70000)
        self.assertEqual(nvml.nvmlDeviceGetPowerManagementLimitConstraints(self.well), [200000, 700000])
        self.assertEqual(nvml.nvmlDeviceGetClockInfo(self.well, nvml.NVML_CLOCK_SM), 345)
        self.assertEqual(nvml.nvmlDeviceGetMaxClockInfo(self.well, nvml.NVML_CLOCK_MEM), 2619)
        self.assertEqual(
            nvml.nvmlDeviceGetCurrentClocksEventReasons(self.sick),
            nvml.nvmlClocksEventReasonHwSlowdown | nvml.nvmlClocksEventReasonHwThermalSlowdown,
        )
        self.assertEqual(
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.well), nvml.nvmlClocksEventReasonGpuIdle
        )
        # The bindings know only the numbering of driver 580.82 and later.
        self.assertEqual(nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 270)
        self.assertEqual(self.field(self.sick, nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN), 1500)

    def test_errors_and_repair(self):
        self.assertEqual(self.field(self.well, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), 0)
        self.assertEqual(
            self.field(self.sick, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
            nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
        )
        self.assertEqual(nvml.nvmlDeviceGetRemappedRows(self.sick), (0, 1, 1, 0))
        self.assertEqual(self.field(self.sick, nvml.NVML_FI_DEV_REMAPPED_PENDING), 1)
        self.assertEqual(nvml.nvmlDeviceGetRowRemapperHistogram(self.well).max, 2560)
        self.assertEqual(nvml.nvmlDeviceGetEccMode(self.well), [1, 1])
        count = nvml.nvmlDeviceGetMemoryErrorCounter(
            self.sick,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
            nvml.NVML_MEMORY_LOCATION_SRAM,
        )
        self.assertEqual(count, 2)
        total = nvml.nvmlDeviceGetTotalEccErrors(
            self.sick, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        self.assertEqual(total, 3)
        status = nvml.c_nvmlEccSramErrorStatus_v1_t()
        nvml.nvmlDeviceGetSramEccErrorStatus(self.sick, byref(status))
        self.assertEqual((status.volatileUncParity, status.bThresholdExceeded), (2, 0))
        with self.assertRaises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetRetiredPages(self.well, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
        with self.assertRaises(nvml.NVMLError_FunctionNotFound):
            nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(self.well)

    def test_links(self):
        states = [nvml.nvmlDeviceGetNvLinkState(self.sick, link) for link in range(18)]
        self.assertEqual([link for link, active in enumerate(states) if not active], [4])
        self.assertEqual(nvml.nvmlDeviceGetNvLinkVersion(self.sick, 0), nvml.NVML_NVLINK_VERSION_4_0)
        errors = nvml.nvmlDeviceGetNvLinkErrorCounter(self.sick, 3, nvml.NVML_NVLINK_ERROR_DL_REPLAY)
        self.assertEqual(errors, 12)
        self.assertEqual(self.field(self.sick, nvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 3), 12)
        self.assertEqual(
            self.field(self.sick, nvml.NVML_FI_DEV_NVLINK_GET_STATE, 4), nvml.NVML_NVLINK_STATE_INACTIVE
        )
        remote = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(self.sick, 0)
        self.assertEqual(remote, nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)
        self.assertEqual(nvml.nvmlDeviceGetNvLinkRemotePciInfo(self.sick, 0).domain, 0x3A1C)
        self.assertEqual(nvml.nvmlDeviceGetCurrPcieLinkWidth(self.sick), 8)
        self.assertEqual(nvml.nvmlDeviceGetMaxPcieLinkWidth(self.sick), 16)
        self.assertEqual(nvml.nvmlDeviceGetMaxPcieLinkGeneration(self.sick), 5)

    def test_fabric(self):
        for kind in (nvml.c_nvmlGpuFabricInfo_v2_t, nvml.c_nvmlGpuFabricInfo_v3_t):
            info = kind()
            self.assertEqual(info.version & 0xFFFFFF, sizeof(kind))
            nvml.nvmlDeviceGetGpuFabricInfoV(self.well, byref(info))
            self.assertEqual(info.state, nvml.NVML_GPU_FABRIC_STATE_COMPLETED)
            self.assertEqual(info.status, nvml.NVML_SUCCESS)
            self.assertEqual(info.healthMask & 3, nvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE)

    def test_modes(self):
        self.assertEqual(nvml.nvmlDeviceGetPersistenceMode(self.well), 1)
        self.assertEqual(nvml.nvmlDeviceGetComputeMode(self.well), nvml.NVML_COMPUTEMODE_DEFAULT)
        self.assertEqual(nvml.nvmlDeviceGetMigMode(self.well), [0, 0])
        self.assertEqual(nvml.nvmlDeviceGetMaxMigDeviceCount(self.well), 0)
        self.assertEqual(nvml.nvmlDeviceGetUtilizationRates(self.sick).gpu, 97)
        self.assertEqual(nvml.nvmlDeviceGetPerformanceState(self.well), 0)
        self.assertEqual(
            nvml.nvmlDeviceGetTopologyCommonAncestor(self.well, self.sick), nvml.NVML_TOPOLOGY_NODE
        )

    def test_lost_gpu(self):
        lost = nvml.nvmlDeviceGetHandleByIndex(5)
        for call in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetPciInfo):
            with self.assertRaises(nvml.NVMLError_GpuIsLost):
                call(lost)

    def test_live_change(self):
        path = os.path.join(NODE, "gpus.toml")
        with open(path, encoding="utf-8") as file:
            before = file.read()

        def write(text):
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(path + ".new", path)

        try:
            write(before.replace("persistence_mode = true", "persistence_mode = false"))
            self.assertEqual(nvml.nvmlDeviceGetPersistenceMode(self.well), 0)
        finally:
            write(before)
        self.assertEqual(nvml.nvmlDeviceGetPersistenceMode(self.well), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)

// A stand-in for NVIDIA's libnvidia-ml.so.1, which answers as the file $STAND_IN_NVML says (tests/nvml.py). Each line of it is
//   init CODE                            what nvmlInit answers
//   gpu NAME BYTES MAJOR MINOR UUID      the next GPU
//   mig INDEX NAME BYTES UUID            an instance of a GPU, which is then in MIG mode
//   process INDEX PID BYTES              a process that uses memory of a GPU
//   fault INDEX FUNCTION CODE            an error of one function for one GPU, such as nvmlDeviceGetMemoryInfo
// with `~` for each space in names. It is read again at each call.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

struct Device { std::string name, uuid; unsigned long long bytes; int major, minor, parent; };
struct Memory { unsigned long long total, free, used; };
struct Rates { unsigned int gpu, memory; };
struct Process { unsigned int pid; unsigned long long bytes; unsigned int instance, compute; };
typedef long Handle;  // the index in `devices` + 1

static std::vector<Device> devices;
static std::vector<std::string> faults;
static std::vector<std::pair<long, Process>> processes;
static int init = 0;
static const int NOT_FOUND = 6, NOT_SUPPORTED = 3, INSUFFICIENT = 7;

static void read() {
  devices.clear(), faults.clear(), processes.clear(), init = 0;
  std::ifstream file(getenv("STAND_IN_NVML") ? getenv("STAND_IN_NVML") : "");
  std::string line, kind;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    Device one{"", "", 0, 0, 0, -1};
    words >> kind;
    if (kind == "init") words >> init;
    if (kind == "gpu") words >> one.name >> one.bytes >> one.major >> one.minor >> one.uuid;
    if (kind == "mig") words >> one.parent >> one.name >> one.bytes >> one.uuid;
    for (char &letter : one.name) if (letter == '~') letter = ' ';
    if (kind == "gpu" || kind == "mig") devices.push_back(one);
    if (kind == "process") { long index; Process process{0, 0, 0, 0}; words >> index >> process.pid >> process.bytes; processes.push_back({index, process}); }
    if (kind == "fault") { std::string rest; std::getline(words, rest); faults.push_back(rest); }
  }
}

static int fault(Handle handle, const char *function) {
  for (const std::string &text : faults) {
    std::istringstream words(text);
    long index; std::string name; int code;
    words >> index >> name >> code;
    if (index == handle - 1 && name == function) return code;
  }
  return 0;
}

static int text(char *into, unsigned int size, const std::string &value) {
  if (value.size() >= size) return INSUFFICIENT;
  strcpy(into, value.c_str());
  return 0;
}

static unsigned long long used(Handle handle) {
  unsigned long long bytes = 0;
  for (auto &one : processes) if (one.first == handle - 1) bytes += one.second.bytes;
  return bytes;
}

static bool has_instances(int index) {
  for (const Device &one : devices) if (one.parent == index) return true;
  return false;
}

#define ANSWER(arguments, body) { read(); if (int code = fault(handle, __func__)) return code; Device &device = devices[handle - 1]; (void)device; body; return 0; }

extern "C" {
int nvmlInitWithFlags(unsigned int) { read(); return init; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) {
  read(), *count = 0;
  for (const Device &one : devices) *count += one.parent < 0;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Handle *into) {  // GPUs come before instances in the file
  read(), *into = index + 1;
  return fault(*into, "nvmlDeviceGetHandleByIndex");
}
int nvmlDeviceGetName(Handle handle, char *into, unsigned int size) ANSWER(, return text(into, size, device.name))
int nvmlDeviceGetUUID(Handle handle, char *into, unsigned int size) ANSWER(, return text(into, size, device.uuid))
int nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor) ANSWER(, *major = device.major; *minor = device.minor)
int nvmlDeviceGetMemoryInfo(Handle handle, Memory *into) ANSWER(, *into = (Memory{device.bytes, device.bytes - used(handle), used(handle)}))
int nvmlDeviceGetMigMode(Handle handle, unsigned int *now, unsigned int *later) ANSWER(, *now = *later = has_instances(handle - 1))
int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned int *count) ANSWER(, *count = has_instances(handle - 1) ? 7 : 0)
int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned int number, Handle *into) {
  read();
  for (size_t place = 0; place < devices.size(); place++)
    if (devices[place].parent == handle - 1 && number-- == 0) { *into = place + 1; return 0; }
  return NOT_FOUND;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned int *count, Process *into) {
  read();
  unsigned int number = 0, room = *count;
  for (auto &one : processes) if (one.first == handle - 1) { if (number < room) into[number] = one.second; number++; }
  *count = number;
  return number > room ? INSUFFICIENT : 0;
}
int nvmlDeviceGetTemperature(Handle handle, int, unsigned int *into) ANSWER(, *into = 40)
int nvmlDeviceGetUtilizationRates(Handle handle, Rates *into) ANSWER(, *into = (Rates{5, 5}))
int nvmlDeviceGetPowerUsage(Handle handle, unsigned int *into) ANSWER(, *into = 70000)
int nvmlDeviceGetEnforcedPowerLimit(Handle handle, unsigned int *into) ANSWER(, *into = 700000)
int nvmlDeviceGetTotalEnergyConsumption(Handle, unsigned long long *) { return NOT_SUPPORTED; }
}

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "backends/nccl/places.h"
#include "device/cuda/check.h"
#include "util/host.h"

namespace libddp::cuda {

Place place_on(int device, int nccl_version) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    Place place;
    // A MIG slice has a number of its own, and the bus address of the GPU that it is part of.
    place.gpu = host_id() + " ";
    for (const char byte : properties.uuid.bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
        place.gpu += digits;
    }
    char bus[32] = "";
    check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "cudaDeviceGetPCIBusId");
    place.name = str("GPU ", bus);
    place.nccl = nccl_version;
    const char* share = std::getenv(kShareVariable);
    place.shares = share && std::string(share) == "1";
    return place;
}

}  // namespace libddp::cuda

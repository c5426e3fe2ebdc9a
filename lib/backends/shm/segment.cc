#include "backends/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "util/error.h"

// Younger than some C libraries that libddp is built with. Kernels before 5.14 refuse it, and then
// pages come one by one.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace libddp::shm {
namespace {

// Writing past the limit would end the process with SIGXFSZ.
void check_file_size_limit(std::uint64_t end) {
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= end)
        return;
    fail(DDP_ERROR_UNSUPPORTED, "the process may not write files beyond ", limit.rlim_cur,
         " bytes (ulimit -f), which counts for shared memory too; lift the limit or use another "
         "backend");
}

}  // namespace

std::size_t page_size() {
    static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

std::size_t whole_pages(std::size_t bytes) {
    return (bytes + page_size() - 1) / page_size() * page_size();
}

Mapping::Mapping(int fd, std::uint64_t offset, std::size_t bytes) : bytes_(bytes) {
    void* data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (data == MAP_FAILED)
        fail(DDP_ERROR_OUT_OF_MEMORY, "mapping ", bytes,
             " bytes of shared memory: ", std::strerror(errno));
    data_ = static_cast<std::byte*>(data);
    // One call now instead of a page fault for each page in the first step.
    madvise(data_, bytes_, MADV_POPULATE_WRITE);
}

Mapping::~Mapping() {
    if (data_) munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Segment::Segment() : fd_(memfd_create("libddp", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (!fd_ || fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        cannot_start("shared memory (memfd_create)", errno, DDP_ERROR_UNSUPPORTED);
}

Segment::Segment(int fd) : fd_(fd) {
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        fail(DDP_ERROR_PERMISSION_DENIED,
             "what was handed over as shared memory is none of libddp's: it could shrink while it "
             "is in use");
}

Mapping Segment::map(std::uint64_t offset, std::size_t bytes) const {
    struct stat file {};
    if (fstat(fd_.get(), &file) != 0)
        fail(DDP_ERROR_INTERNAL, "shared memory: ", std::strerror(errno));
    const auto size = static_cast<std::uint64_t>(file.st_size);
    if (offset > size || bytes > size - offset)
        fail(DDP_ERROR_RANK_FAILED, "another rank of this host says that shared memory of ", size,
             " bytes has ", bytes, " bytes at ", offset);
    return Mapping(fd_.get(), offset, bytes);
}

void Segment::reserve(std::uint64_t offset, std::size_t bytes) {
    check_file_size_limit(offset + bytes);
    int result;
    do {
        result = fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0)
        fail(DDP_ERROR_OUT_OF_MEMORY, "no ", bytes,
             " bytes of shared memory: ", std::strerror(errno));
}

bool Segment::release(std::uint64_t offset, std::size_t bytes) noexcept {
    int result;
    do {
        result = fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                           static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

}  // namespace libddp::shm

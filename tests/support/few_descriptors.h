// A process that can open only so many files more.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

namespace libddp {

// Few descriptors are free while this lives. Open files stay open.
class FewDescriptors {
public:
    explicit FewDescriptors(int left) {
        getrlimit(RLIMIT_NOFILE, &before_);
        int fd = 0;
        for (;; ++fd)
            if (fcntl(fd, F_GETFD) < 0 && left-- == 0) break;
        rlimit limit = before_;
        limit.rlim_cur = static_cast<rlim_t>(fd);
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;

private:
    rlimit before_{};
};

}  // namespace libddp

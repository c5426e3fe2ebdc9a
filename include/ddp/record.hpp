/* record.hpp: a part of ddp.hpp: marks of the program. Semantics: record.h. */
#ifndef DDP_RECORD_HPP
#define DDP_RECORD_HPP

#include <string>

#include "error.hpp"
#include "record.h"

namespace ddp {

/* A mark that lasts as long as the object: { ddp::Mark mark("forward"); ... } */
class Mark {
public:
    explicit Mark(const std::string& name) { detail::call(ddp_mark_begin, name.c_str()); }
    ~Mark() { ddp_mark_end(nullptr); }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
};

}  // namespace ddp

#endif /* DDP_RECORD_HPP */

#include "base/progress.h"

#include "base/error.h"

namespace voodoo {

Observer& null_observer() {
    static Observer observer;
    return observer;
}

void Cancellation::check() const {
    if (requested()) throw Error(ErrorKind::interrupted, "interrupted");
}

}  // namespace voodoo

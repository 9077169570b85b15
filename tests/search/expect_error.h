// EXPECT_ERROR(statement, kind): the statement throws voodoo::Error of that kind.
#pragma once

#include <gtest/gtest.h>

#include "base/error.h"

#define EXPECT_ERROR(statement, expected_kind)                                           \
    do {                                                                                 \
        try {                                                                            \
            statement;                                                                   \
            ADD_FAILURE() << "no error from " #statement;                                \
        } catch (const voodoo::Error& error) {                                           \
            EXPECT_EQ(voodoo::to_string(error.kind()), voodoo::to_string(expected_kind)) \
                << error.what();                                                         \
        }                                                                                \
    } while (false)

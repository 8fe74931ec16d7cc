/*
 * Test double of NIXL's C library (libfake_nixl.so): the functions that kvstore/nixl_api.h names, with the back
 * ends POSIX (files) and OBJ (objects in the memory of the process). With it the NIXL tier is tested where NIXL is
 * not installed, and with faults that the real library cannot be asked for. It says nothing about how the real one
 * behaves.
 *
 * Parameters of OBJ are those of NIXL: `bucket` (the one called "absent" does not exist) and `access_key` ("wrong" is refused).
 * As in NIXL, creating the back end checks neither.
 */
#ifndef SL_TEST_FAKE_NIXL_H
#define SL_TEST_FAKE_NIXL_H

#include <stdatomic.h>

typedef enum { FAKE_NIXL_NONE, FAKE_NIXL_REGISTER, FAKE_NIXL_STATUS, FAKE_NIXL_QUERY } fake_nixl_call;

/* May be changed at any time. */
typedef struct fake_nixl_faults {
    atomic_int endless;     /* transfers that are posted now never end */
    atomic_int hanging;     /* fake_nixl_call: this call does not return until it is another one */
    atomic_int in_call;     /* calls that hang now */
    atomic_int unreachable; /* queries and transfers fail */
    atomic_int damage;      /* every object is returned with one byte changed */
    void (*read)(unsigned char *bytes,
                 unsigned long n); /* NULL, or changes what is read of an object; between requests */
} fake_nixl_faults;

const char *fake_nixl_path(void);
/* The faults of the library in this process. */
fake_nixl_faults *fake_nixl(void);

#endif

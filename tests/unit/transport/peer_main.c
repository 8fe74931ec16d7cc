/* transport_peer TRANSPORT TLS [SECRET]: the conformance peer as a process, which encrypts with a secret. Prints its
 * address, then serves. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "tests/unit/transport/peer.h"

static void print_address(void *arg, const char *address)
{
    (void)arg;
    printf("%s\n", address);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: transport_peer TRANSPORT TLS [SECRET]\n");
        return 2;
    }
    sl_log_init(SL_LOG_WARN, false, "peer");
    sl_tp_options o = sl_tp_options_default();
    o.tls = strcmp(argv[2], "default") == 0 ? NULL : argv[2];
    o.secret = argv[3]; /* NULL without one */
    o.encrypt = argc == 4;
    return peer_serve(argv[1], &o, print_address, NULL, NULL, NULL);
}

/* A store that outlives the ranks: prints its port, and ends with its standard input. `store URI`:
 * another than tcp://127.0.0.1:0. One on etcd is not emptied as long as this process is there. */
#include <ddp/ddp.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    options.is_server = strncmp(options.uri, "tcp://", 6) == 0;
    ddp_store* store = NULL;
    ddp_error* error = NULL;
    if (ddp_store_create(&options, &store, &error) != DDP_OK)
        return fprintf(stderr, "%s\n", ddp_error_message(error)), 1;
    printf("%d\n", (int)ddp_store_port(store));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    ddp_store_free(store);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/* main() of a fuzz target's plain build: runs files, and the files of folders, through it once
 * each. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int replay_file(const char *path)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) || !S_ISREG(st.st_mode)) {
        if (f)
            fclose(f);
        return 0;
    }
    /* Exactly as large as the input, so that the address sanitizer sees reads past its end. */
    size_t n = (size_t)st.st_size;
    uint8_t *p = malloc(n ? n : 1);
    int done = p && fread(p, 1, n, f) == n;
    fclose(f);
    if (done)
        LLVMFuzzerTestOneInput(p, n);
    free(p);
    return done;
}

static int replay_folder(DIR *d, const char *path)
{
    char name[4096];
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        n += replay_file(name);
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        n += d ? replay_folder(d, argv[i]) : replay_file(argv[i]);
    }
    printf("%d inputs\n", n);
    return n ? 0 : 1;
}

/* The library is loaded, used on a thread, and unloaded while that thread lives, ten times over: reload LIBRARY MODEL. The thread's end
   must not call into the library that is gone, and memory must not grow from one time to the next. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "orrery.h"

static const char *library, *model;
static void *loaded;
static sem_t used, gone;

static void *use(void *result) {
  orrery_status (*open_vocab)(const orrery_source *, orrery_vocab **, orrery_error *);
  void (*free_vocab)(orrery_vocab *);
  orrery_vocab *vocab = NULL;
  const orrery_source file = {.struct_size = sizeof file, .kind = ORRERY_SOURCE_PATH, .path = model};
  *(void **)&open_vocab = dlsym(loaded, "orrery_vocab_open");
  *(void **)&free_vocab = dlsym(loaded, "orrery_vocab_free");
  *(int *)result = open_vocab && free_vocab && open_vocab(&file, &vocab, NULL) == ORRERY_OK;
  if (*(int *)result) free_vocab(vocab);
  sem_post(&used);
  sem_wait(&gone);
  return NULL;
}

static long resident_pages(void) {
  long all = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL) return 0;
  if (fscanf(file, "%ld %ld", &all, &resident) != 2) resident = 0;
  fclose(file);
  return resident;
}

int main(int argc, char **argv) {
  long first = 0, last = 0;
  if (argc != 3) return 2;
  library = argv[1], model = argv[2];
  sem_init(&used, 0, 0);
  sem_init(&gone, 0, 0);
  for (int i = 0; i < 10; ++i) {
    pthread_t thread;
    int worked = 0;
    loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded == NULL) return printf("FAILED: %s\n", dlerror()), 1;
    if (pthread_create(&thread, NULL, use, &worked) != 0) return printf("FAILED: no thread\n"), 1;
    sem_wait(&used);
    dlclose(loaded);
    if (dlopen(library, RTLD_NOW | RTLD_NOLOAD) != NULL) return printf("FAILED: the library stays loaded\n"), 1;
    sem_post(&gone);
    pthread_join(thread, NULL);
    if (!worked) return printf("FAILED: the vocabulary\n"), 1;
    last = resident_pages();
    if (i == 1) first = last;
  }
  const long grown = (last - first) * (sysconf(_SC_PAGESIZE) / 1024);
  printf("loaded and unloaded 10 times, %ld KiB more than after the second\n", grown);
  return grown > 8192;
}

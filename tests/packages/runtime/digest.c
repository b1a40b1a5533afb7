/* digest FILE: both ways of SHA-256 over the first bytes of a file, 0 to all of them by steps; the last one
 * is printed. */
#include "smelt_sha256.c"

#include <stdio.h>

int main(int count, char** arguments) {
  static unsigned char data[3000], digest[32];
  FILE* file = count == 2 ? fopen(arguments[1], "rb") : NULL;
  size_t bytes, i;
  if (!file) return 2;
  bytes = fread(data, 1, sizeof data, file);
  fclose(file);
  for (i = 0; has_instructions() && i + 64 < bytes; i += 7) {
    uint32_t one[8] = {1, 2, 3, 4, 5, 6, 7, 8}, two[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    add_blocks(one, data + i, (bytes - i) / 64);
    add_blocks_quickly(two, data + i, (bytes - i) / 64);
    if (memcmp(one, two, sizeof one) != 0) return 1;
  }
  for (i = 0; i <= bytes; ++i) {
    size_t j;
    if (i > 200 && i < bytes - 200) continue;
    smelt_sha256(data, i, digest);
    for (j = 0; j < 32; ++j) printf("%02x", digest[j]);
    printf("\n");
  }
  return 0;
}

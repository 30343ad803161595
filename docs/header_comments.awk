# SPDX-License-Identifier: Apache-2.0
# What Doxygen reads in place of a header. A comment before `namespace`, `#ifdef __cplusplus` or an include is of the
# file; without \file Doxygen gives it to the next declaration. The @ of "state@n" begins no command. The namespace
# stateport, which all names are in, is left out: Breathe would declare it anew for every file.
/^\/\/\/ / { if (!comment) { comment = NR; block = "" } block = block escaped($0) "\n"; next }
comment {
  if ($0 ~ /^(namespace |#ifdef __cplusplus|#include )/) printf "/// \\file\n"
  printf "%s", block
  comment = 0
}
/^namespace stateport \{|^\}  \/\/ namespace stateport$/ { print ""; next }
{ sub(/^namespace stateport::/, "namespace ") }
{ print /\/\/\// ? escaped($0) : $0 }
END { if (comment) printf "/// \\file\n%s", block }
function escaped(line) { gsub(/@/, "@@", line); return line }

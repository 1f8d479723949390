# Writes OUT, a C++ source with the text of FILES under their names below ROOT, those of
# jit/include without that.
set(text "// Made by embed_headers.cmake.\n#include \"jit/nvrtc.h\"\n\nnamespace dpiframe {\n\n")
string(APPEND text "const std::vector<std::pair<std::string, std::string>>& embedded_headers() {\n")
string(APPEND text "  static const std::vector<std::pair<std::string, std::string>> headers = {\n")
separate_arguments(files UNIX_COMMAND "${FILES}")
foreach(path ${files})
  file(READ ${ROOT}/${path} header)
  string(REPLACE "jit/include/" "" name ${path})
  string(APPEND text "{\"${name}\", R\"dpif_text(${header})dpif_text\"},\n")
endforeach()
string(APPEND text "  };\n  return headers;\n}\n\n}  // namespace dpiframe\n")
file(WRITE ${OUT} "${text}")

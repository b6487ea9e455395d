// Database: one SQLite file, in WAL mode with full sync: what a committed statement wrote survives
// the end of the process and of the machine. Not thread-safe: its owner locks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fabric/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace weft::state {

// A prepared statement, reset by each Bind run. Errors stay until Step or Run returns them.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  ~Statement();
  Statement(Statement&& other) noexcept : statement_(other.statement_) {
    other.statement_ = nullptr;
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Parameters are numbered from 1.
  Statement& BindInt(int index, int64_t value);
  Statement& BindText(int index, const std::string& value);
  Statement& BindBlob(int index, const std::string& value);
  Statement& BindNull(int index);

  // True: a row is there. False: no more rows.
  StatusOr<bool> Step();
  // For statements without rows.
  Status Run();

  int64_t Int(int column) const;
  std::string Bytes(int column) const;

 private:
  sqlite3_stmt* statement_;
};

class Database {
 public:
  // Opens or creates `path`. FailedPrecondition when its schema version is another one than
  // `version` (0 in a new file, in which `schema` is run); DataLoss when SQLite calls it damaged.
  static StatusOr<std::unique_ptr<Database>> Open(const std::string& path, int version,
                                                  const char* schema);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  Status Execute(const char* sql);
  StatusOr<Statement> Prepare(const char* sql);

 private:
  explicit Database(sqlite3* db) : db_(db) {}
  sqlite3* db_;
};

}  // namespace weft::state

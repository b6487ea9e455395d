#include "server/state/database.h"

#include "sqlite3.h"

namespace weft::state {
namespace {

Status SqliteStatus(sqlite3* db, int code, absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", sqlite3_errmsg(db));
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLoss(text);
    case SQLITE_FULL:
      return ResourceExhausted(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unavailable(text);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(text);
    default:
      return Internal(text);
  }
}

StatusOr<int64_t> QueryInt(Database& db, const char* sql) {
  ASSIGN_OR_RETURN(Statement query, db.Prepare(sql));
  ASSIGN_OR_RETURN(const bool row, query.Step());
  if (!row) return Internal("no row for ", sql);
  return query.Int(0);
}

}  // namespace

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::BindInt(int index, int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
  return *this;
}

Statement& Statement::BindText(int index, const std::string& value) {
  sqlite3_bind_text64(statement_, index, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

Statement& Statement::BindBlob(int index, const std::string& value) {
  sqlite3_bind_blob64(statement_, index, value.data(), value.size(), SQLITE_TRANSIENT);
  return *this;
}

Statement& Statement::BindNull(int index) {
  sqlite3_bind_null(statement_, index);
  return *this;
}

StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  sqlite3* db = sqlite3_db_handle(statement_);
  const Status status =
      code == SQLITE_DONE ? absl::OkStatus() : SqliteStatus(db, code, "state database");
  sqlite3_reset(statement_);
  if (!status.ok()) return status;
  return false;
}

Status Statement::Run() {
  ASSIGN_OR_RETURN(const bool row, Step());
  if (row) sqlite3_reset(statement_);
  return absl::OkStatus();
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? "" : std::string(static_cast<const char*>(data), size);
}

StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, int version,
                                                   const char* schema) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<Database> db(new Database(raw));
  if (code != SQLITE_OK) return Annotate(SqliteStatus(raw, code, "open"), path);
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 2000);
  // FULL syncs the log at each commit, so that an answer that follows the commit is a promise.
  RETURN_IF_ERROR(Annotate(db->Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
                                       "PRAGMA foreign_keys=ON; PRAGMA secure_delete=OFF;"),
                           path));
  ASSIGN_OR_RETURN(const int64_t found, QueryInt(*db, "PRAGMA user_version"));
  if (found == 0) {
    const std::string create =
        absl::StrCat("BEGIN; ", schema, " PRAGMA user_version=", version, "; COMMIT;");
    RETURN_IF_ERROR(Annotate(db->Execute(create.c_str()), path));
  } else if (found != version) {
    return FailedPrecondition(path, " has schema version ", found, ", this build reads ", version,
                              "; use the build that wrote it, or another state_dir");
  }
  return db;
}

Database::~Database() { sqlite3_close_v2(db_); }

Status Database::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) return absl::OkStatus();
  return SqliteStatus(db_, code, "state database");
}

StatusOr<Statement> Database::Prepare(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(db_, sql, -1, &statement, nullptr);
  if (code != SQLITE_OK) return SqliteStatus(db_, code, "prepare");
  return Statement(statement);
}

}  // namespace weft::state
